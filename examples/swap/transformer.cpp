// Lets LibTorch's own Transformer, encoder, decoder and the attention between
// them, attend by our kernels; and takes one cross-attention out of it.

#include "compare.h"

#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/utils.h>

#include <torch_attention/nn/utils/swap.h>
#include <torch_attention/nn/utils/swap_transformer.h>

#include <exception>
#include <iostream>

namespace {

using swap_example::check_same;
using swap_example::compare_times;
using torch::Tensor;

constexpr int64_t kWidth = 256;
constexpr int64_t kHeads = 8;
constexpr int64_t kSource = 384;
constexpr int64_t kTarget = 256;
constexpr int64_t kBatch = 4;

/// The arguments of a model of translation: (T, B, C) and masks.
struct Batch {
  Batch() {
    source_padding[1].slice(0, 200).fill_(true);
    target_padding[2].slice(0, 31).fill_(true);
  }

  Tensor run(torch::nn::Transformer& model) const {
    return model->forward(
        source,
        target,
        /*src_mask=*/{},
        causal,
        /*memory_mask=*/{},
        source_padding,
        target_padding,
        /*memory_key_padding_mask=*/source_padding);
  }

  Tensor source = torch::randn({kSource, kBatch, kWidth});
  Tensor target = torch::randn({kTarget, kBatch, kWidth});
  Tensor causal =
      torch::nn::TransformerImpl::generate_square_subsequent_mask(kTarget);
  Tensor source_padding = torch::zeros({kBatch, kSource}, torch::kBool);
  Tensor target_padding = torch::zeros({kBatch, kTarget}, torch::kBool);
};

/// The whole model, in one line.
void swap_model() {
  torch::nn::Transformer theirs(torch::nn::TransformerOptions(kWidth, kHeads)
                                    .num_encoder_layers(2)
                                    .num_decoder_layers(2)
                                    .dim_feedforward(512));
  theirs->eval();
  torch::nn::Transformer ours(
      std::dynamic_pointer_cast<torch::nn::TransformerImpl>(theirs->clone()));

  // The swap.
  const auto report = torch_attention::swap_attention(*ours);
  for (const auto& path : report.swapped) {
    std::cout << "swapped: " << path << '\n';
  }
  for (const auto& why : report.left) {
    std::cout << "left: " << why << '\n';
  }
  TORCH_CHECK(report.swapped.size() == 2 && report.left.empty());

  const torch::NoGradGuard no_gradients;
  const Batch batch;
  check_same("Transformer", batch.run(ours), batch.run(theirs));
  compare_times(
      [&] { return batch.run(theirs); }, [&] { return batch.run(ours); });
}

/// One module, for a model of your own.
void take_cross_attention() {
  torch::nn::TransformerDecoderLayer layer(
      torch::nn::TransformerDecoderLayerOptions(kWidth, kHeads));
  layer->eval();
  auto theirs = layer->multihead_attn;
  auto ours = torch_attention::cross_from_multihead_attention(*theirs);

  const torch::NoGradGuard no_gradients;
  const Batch batch;
  const auto expected = std::get<0>(theirs->forward(
      batch.target,
      batch.source,
      batch.source,
      batch.source_padding,
      /*need_weights=*/false));
  const auto output = ours->forward(
      batch.target.transpose(0, 1), // (B, T, C)
      batch.source.transpose(0, 1),
      torch_attention::ForwardOptions().key_padding_mask(batch.source_padding));
  check_same("CrossAttention", output, expected.transpose(0, 1));
}

} // namespace

int main() {
  try {
    swap_model();
    take_cross_attention();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
