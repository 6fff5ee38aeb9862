#pragma once

#include <torch/types.h>

#include <functional>

namespace torch_attention {

/// Changes scores (..., T, S), which have their scale, softcap, biases and
/// masks, right before the softmax, and returns them: a tensor of the same
/// shape, dtype and device. It is called once for each attention, while
/// autograd records, so that whatever it computes by LibTorch's operators is
/// differentiable, and tensors that it holds get gradients.
///
/// For a hidden key it gets -1e30, -1e4 in float16, and the key stays hidden
/// whatever it returns there; -inf that it returns hides more.
///
/// Example:
/// ```
/// // the 4 keys with the largest scores
/// ScoreFunction largest = [](const torch::Tensor& scores) {
///   const auto num = std::min<int64_t>(4, scores.size(-1));
///   const auto least = std::get<0>(scores.topk(num)).slice(-1, num - 1);
///   return scores.masked_fill(
///       scores < least, -std::numeric_limits<double>::infinity());
/// };
/// ```
using ScoreFunction = std::function<torch::Tensor(const torch::Tensor&)>;

/// Changes weights (..., T, S), right after the softmax and before dropout, and
/// returns them: a tensor of the same shape, dtype and device, which values are
/// multiplied by as it is. Called and differentiated as a ScoreFunction is.
///
/// The weight of a hidden key is 0, and stays 0 whatever it returns there.
///
/// Example:
/// ```
/// // the second half of the heads is taken from the first
/// WeightFunction difference = [](const torch::Tensor& weights) {
///   const auto parts = weights.chunk(2, /*dim=*/1);
///   return torch::cat({parts[0] - 0.5 * parts[1], parts[1]}, 1);
/// };
/// ```
using WeightFunction = std::function<torch::Tensor(const torch::Tensor&)>;

} // namespace torch_attention
