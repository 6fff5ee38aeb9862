#pragma once

#include <harness/candidate.h>
#include <harness/work.h>

#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/multi_head_attention_wrapper.h>
#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::benchmarks {

/// The difference from ours that is allowed in half precision, which LibTorch's
/// kernels round on the way, too.
constexpr double kAllowedInHalf = 0.03;

bool is_half(torch::ScalarType dtype);

/// The weights and the input that all candidates for a module share.
struct ModuleData {
  /// (B, T, C)
  torch::Tensor input;
  /// The gradient of the output (B, T, H D); undefined without backward.
  torch::Tensor cotangent;
  MultiHeadAttention weights = nullptr;
};

/// Draws the weights and the input. `mask` as in `MultiHeadAttentionOptions`.
ModuleData draw_module(const Work& work, bool mask = true);

/// Returns `data` rounded to `dtype`; the module is the same, which changes.
ModuleData in_dtype(ModuleData data, torch::Dtype dtype);

/// Returns our module. With `Kernel::kReference` it is the documents' sequence
/// of LibTorch's operations.
Candidate our_module(
    const std::string& name,
    const ModuleData& data,
    Kernel kernel);

/// Returns four linear layers around LibTorch's `scaled_dot_product_attention`,
/// in Python's layout (B, T, C).
Candidate sdpa_module(const std::string& name, const ModuleData& data);

/// Returns `torch::nn::MultiheadAttention` with a mask that is added, in its
/// own layout (T, B, C), and without the attention weights. Takes modules with
/// C == H D.
Candidate libtorch_module(const std::string& name, const ModuleData& data);

/// A `MultiHeadAttentionWrapper` with an input, as `ModuleData`.
struct WrapperData {
  torch::Tensor input;
  torch::Tensor cotangent;
  MultiHeadAttentionWrapper weights = nullptr;
};

WrapperData draw_wrapper(const Work& work);

Candidate our_wrapper(
    const std::string& name,
    const WrapperData& data,
    Kernel kernel);

/// Inputs (B, H, T, D) of attention alone; key and value may have more tokens
/// and fewer heads, each for a group of the query's.
struct AttentionData {
  torch::Tensor query, key, value;
  /// The gradient of the output; undefined without backward.
  torch::Tensor cotangent;
};

AttentionData draw_attention(const Work& work);

/// Returns our `functional::scaled_dot_product_attention`.
Candidate our_attention(
    const std::string& name,
    const AttentionData& data,
    const functional::ScaledDotProductAttentionFuncOptions& options);

/// Options of LibTorch's `scaled_dot_product_attention`.
struct SdpaOptions {
  double dropout = 0;
  bool causal = true;
  bool enable_gqa = false;
  /// A mask that is added to the scores; undefined: none.
  torch::Tensor mask;
};

Candidate sdpa_attention(
    const std::string& name,
    const AttentionData& data,
    const SdpaOptions& options);

/// Returns causal attention by ours and by SDPA, and with dropout by SDPA
/// without, too.
std::vector<Candidate> attention_candidates(const Work& work);

/// Returns a mask (T, T): 0 where a query sees a key, else -inf.
torch::Tensor additive_mask(int64_t T, std::optional<int64_t> window);

} // namespace torch_attention::benchmarks
