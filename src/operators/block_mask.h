#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Masks as tiles for Python and TorchScript, in one tensor: what
/// `BlockMask::packed()` returns.
namespace torch_attention::operators {

/// The arguments of the operator that calls a function of Python.
constexpr const char* kMaskFunctionArguments =
    "int function, Tensor batch, Tensor head, Tensor query, Tensor key";

/// Returns the mask of a program: rules in postfix order, each with its
/// operands, such as "causal documents 0 none and". Numbers are in decimal, and
/// `tensors` are named by their index:
///
/// causal
/// window WINDOW WINDOW_AFTER|none
/// chunk SIZE
/// documents IDS KEY_IDS|none
/// packed_documents CU_SEQLENS
/// prefix LENGTH
/// prefixes LENGTHS
/// blocks SEES QUERY_SIZE KEY_SIZE
/// function NUMBER, which torch_attention::_mask_function gets
/// and, or, not: of the one or two values before
///
/// Throws c10::Error for any other word, for values that are missing or left,
/// and where `MaskMod` and `BlockMask` do.
torch::Tensor block_mask(
    const std::string& program,
    const std::vector<torch::Tensor>& tensors,
    int64_t num_queries,
    int64_t num_keys,
    int64_t batch_size,
    int64_t num_heads,
    const std::optional<torch::Tensor>& query_offsets,
    const std::optional<torch::Tensor>& key_offsets);

/// Returns the mask as bool (batch_size, num_heads, T, S), true hides.
torch::Tensor block_mask_hidden(const torch::Tensor& packed);

/// Returns batch_size, num_heads, num_queries and num_keys of a mask.
std::vector<int64_t> block_mask_sizes(const torch::Tensor& packed);

/// Returns the share of the tiles that some query attends to.
double block_mask_density(const torch::Tensor& packed);

} // namespace torch_attention::operators
