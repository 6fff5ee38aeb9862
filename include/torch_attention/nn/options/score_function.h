#pragma once

#include <torch/types.h>

#include <functional>

namespace torch_attention {

/// Returns changed scores (..., T, S), of the same shape, dtype and device. It
/// is called right before the softmax, with scores after scale, softcap, biases
/// and masks, once per attention. Autograd records its operators, so that the
/// result is differentiable and captured tensors get gradients.
///
/// The score of a hidden key is -1e30 (-1e4 in float16), and the key stays
/// hidden whatever is returned for it. Returning -inf hides more keys.
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

/// Returns changed weights (..., T, S), of the same shape, dtype and device. It
/// is called right after the softmax and before dropout; the result is not
/// normalised again. Called and differentiated like a ScoreFunction.
///
/// The weight of a hidden key is 0, and stays 0 whatever is returned for it.
///
/// Example:
/// ```
/// // subtracts the second half of the heads from the first
/// WeightFunction difference = [](const torch::Tensor& weights) {
///   const auto parts = weights.chunk(2, /*dim=*/1);
///   return torch::cat({parts[0] - 0.5 * parts[1], parts[1]}, 1);
/// };
/// ```
using WeightFunction = std::function<torch::Tensor(const torch::Tensor&)>;

} // namespace torch_attention
