#pragma once

#include <large_pages.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>

namespace torch_attention {

/// While one lives, this thread makes layers with uninitialised weights: for
/// models that are loaded, which neither wait for random numbers nor change
/// those that the program draws.
///
/// Example:
/// ```
/// const UndrawnWeights undrawn;
/// auto layer = make_linear(in, out, bias); // to be filled
/// ```
class UndrawnWeights {
 public:
  UndrawnWeights() {
    ++count();
  }
  UndrawnWeights(const UndrawnWeights&) = delete;
  UndrawnWeights& operator=(const UndrawnWeights&) = delete;
  ~UndrawnWeights() {
    --count();
  }

  static bool are_wanted() {
    return count() > 0;
  }

 private:
  static int& count() {
    thread_local int count = 0;
    return count;
  }
};

/// Returns a linear layer from `in` to `out` features.
inline torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias) {
  const auto options = torch::nn::LinearOptions(in, out).bias(bias);
  if (!UndrawnWeights::are_wanted()) {
    return torch::nn::Linear(options);
  }
  // LibTorch's constructor draws: here no numbers, since there are no rows.
  torch::nn::Linear layer(torch::nn::LinearOptions(1, 0).bias(bias));
  layer->options = options;
  layer->weight.set_data(empty_on_large_pages({out, in}));
  if (bias) {
    layer->bias.set_data(torch::empty(out));
  }
  return layer;
}

/// Returns a table of `rows` vectors.
inline torch::nn::Embedding make_embedding(int64_t rows, int64_t size) {
  torch::nn::EmbeddingOptions options(rows, size);
  if (UndrawnWeights::are_wanted()) {
    options._weight(empty_on_large_pages({rows, size}));
  }
  return torch::nn::Embedding(options);
}

} // namespace torch_attention
