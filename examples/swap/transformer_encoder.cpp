// Lets LibTorch's own TransformerEncoder attend by our kernels: the same
// weights, the same outputs, padded batches too, in less time.

#include "compare.h"

#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/utils.h>

#include <torch_attention/nn/modules/swapped_transformer.h>

#include <exception>
#include <iostream>

namespace {

using swap_example::check_same;
using swap_example::compare_times;

void run() {
  constexpr int64_t kTokens = 256;
  constexpr int64_t kWidth = 256;
  torch::nn::TransformerEncoder theirs(
      torch::nn::TransformerEncoderOptions(
          torch::nn::TransformerEncoderLayerOptions(kWidth, /*nhead=*/8)
              .dim_feedforward(512)
              .activation(torch::kGELU),
          /*num_layers=*/2)
          .norm(torch::nn::AnyModule(
              torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))));
  theirs->eval();

  // The swap: shares the layers, weights and all.
  torch_attention::SwappedTransformerEncoder ours(theirs);

  const torch::NoGradGuard no_gradients;
  const auto src = torch::randn({kTokens, 4, kWidth}); // (T, B, C)
  auto padding = torch::zeros({4, kTokens}, torch::kBool);
  padding[1].slice(0, 200).fill_(true);
  padding[3].slice(0, 17).fill_(true);
  check_same("whole sequences", ours->forward(src), theirs->forward(src));
  check_same(
      "padded sequences",
      ours->forward(src, {}, padding),
      theirs->forward(src, {}, padding));

  compare_times(
      [&] { return theirs->forward(src, {}, padding); },
      [&] { return ours->forward(src, {}, padding); });
}

} // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
