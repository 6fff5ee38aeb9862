// Our attention in models whose attention was written by hand, with trained
// weights and padding: by our function, or by our module; and in place of a
// torch::nn::MultiheadAttention.
//
//   swap_modules FILE
//
// writes the weights of the model of hand_written.h to FILE first.

#include "by_function.h"
#include "by_module.h"
#include "compare.h"
#include "hand_written.h"

#include <torch/nn/modules/activation.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <torch_attention/nn/utils/swap.h>
#include <torch_attention/weights/load.h>

#include <exception>
#include <iostream>
#include <string>

namespace {

using swap_example::check_same;
using swap_example::compare_times;
using torch::Tensor;
using torch_attention::WeightLayout;

constexpr int64_t kBatch = 4;
constexpr int64_t kTokens = 384;
constexpr int64_t kWidth = 256;
constexpr int64_t kHeads = 8;
constexpr int64_t kLayers = 2;

/// The arguments of the model.
struct Batch {
  Batch() {
    padding[1].slice(0, 200).fill_(true);
    padding[3].slice(0, 17).fill_(true);
  }

  Tensor x = torch::randn({kBatch, kTokens, kWidth});
  Tensor padding = torch::zeros({kBatch, kTokens}, torch::kBool);
};

/// The names of the hand-written attention's weights, and ours.
WeightLayout hand_written_layout() {
  return WeightLayout("hand_written")
      .rename("q.weight", "W_query.weight")
      .rename("q.bias", "W_query.bias")
      .rename("k.weight", "W_key.weight")
      .rename("k.bias", "W_key.bias")
      .rename("v.weight", "W_value.weight")
      .rename("v.bias", "W_value.bias")
      .rename("out.weight", "out_proj.weight")
      .rename("out.bias", "out_proj.bias");
}

/// Compares a model with the one before the swap.
template <typename Model>
void compare(
    const char* what,
    theirs::Model& before,
    Model& after,
    const Batch& batch) {
  before->eval();
  after->eval();
  check_same(
      what,
      after->forward(batch.x, batch.padding),
      before->forward(batch.x, batch.padding));
  compare_times(
      [&] { return before->forward(batch.x, batch.padding); },
      [&] { return after->forward(batch.x, batch.padding); });
}

/// Both swaps change the code of the model; its file of weights stays.
void swap_hand_written(
    const std::string& path,
    theirs::Model& before,
    const Batch& batch) {
  // The linear layers stayed, and with them the names in the file.
  by_function::Model by_function(kWidth, kHeads, kLayers);
  torch::load(by_function, path);
  compare("by function", before, by_function, batch);

  by_module::Model by_module(kWidth, kHeads, kLayers);
  std::cout << torch_attention::load_weights(
      *by_module,
      path,
      torch_attention::LoadOptions().layout(hand_written_layout()));
  compare("by module", before, by_module, batch);
}

/// Takes the weights of LibTorch's attention. It gets a mask with each call, so
/// that its weights do not tell whether the model is causal: `causal` says so.
void swap_multihead_attention(const Batch& batch) {
  torch::nn::MultiheadAttention old(
      torch::nn::MultiheadAttentionOptions(kWidth, kHeads));
  auto attention = torch_attention::from_multihead_attention(
      *old, /*context_length=*/kTokens, /*causal=*/true);
  const auto tokens_first = batch.x.transpose(0, 1); // (T, B, C)
  const auto mask = torch::full({kTokens, kTokens}, -INFINITY).triu(1);
  const auto before = [&] {
    return std::get<0>(old->forward(
        tokens_first,
        tokens_first,
        tokens_first,
        /*key_padding_mask=*/{},
        /*need_weights=*/false,
        mask));
  };
  const auto after = [&] { return attention->forward(batch.x); };
  check_same("MultiheadAttention", after(), before().transpose(0, 1));
  compare_times(before, after);
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: swap_modules FILE\n";
    return 2;
  }
  try {
    const torch::NoGradGuard no_gradients;
    torch::manual_seed(123);
    const Batch batch;
    theirs::Model model(kWidth, kHeads, kLayers);
    torch::save(model, argv[1]);
    swap_hand_written(argv[1], model, batch);
    swap_multihead_attention(batch);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
