#pragma once

// ordered_dict.h uses TORCH_CHECK and does not include it.
#include <c10/util/Exception.h>

#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/weights/layout.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention {

/// The result of `convert_layout`.
struct TORCH_ATTENTION_API ConvertedWeights {
  /// The tensors of each attention module under the target's names and in its
  /// shapes, at the place of the first of them; all other tensors as they were.
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  /// The keys of the source for which the target has no use: masks, and tensors
  /// that the source's layout ignores.
  std::vector<std::string> left_out;

  /// Sentences that say what is not certain: keys and shapes that are also
  /// those of another layout.
  std::vector<std::string> remarks;
};

/// Rewrites every attention module among `tensors`, whose names are dotted
/// paths, from layout `source` to layout `target`. With `WeightLayout::book()`
/// as the target, the results have the canonical names and shapes (see
/// `WeightLayout`); with it as the source, `tensors` must have them.
///
/// Results that need no joining are views of `tensors`: they share memory.
///
/// `source` may be `automatic()`, which finds the layout of each module from
/// its names and shapes; `target` may not. `num_heads` is needed by targets
/// that list heads, unless the source lists them as well.
///
/// Throws c10::Error if there is no attention in layout `source`, several
/// layouts fit, the shapes are not those of one attention, or `target` cannot
/// hold a tensor.
///
/// Example:
/// ```
/// const auto gpt2 = read_weights("gpt2.safetensors");
/// const auto ours = convert_layout(
///     gpt2, WeightLayout::automatic(), WeightLayout::book());
/// std::cout << ours.tensors["h.0.attn.W_query.weight"].sizes();
/// ```
TORCH_ATTENTION_API ConvertedWeights convert_layout(
    const torch::OrderedDict<std::string, torch::Tensor>& tensors,
    const WeightLayout& source,
    const WeightLayout& target,
    std::optional<int64_t> num_heads = std::nullopt);

} // namespace torch_attention
