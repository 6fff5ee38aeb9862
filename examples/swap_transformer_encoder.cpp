// Puts MultiHeadAttention into LibTorch's own TransformerEncoder, with its
// weights: the same outputs, padded batches too, in less time.

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/utils.h>

#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/utils/swap.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <iostream>
#include <variant>
#include <vector>

namespace {

using torch::Tensor;
using torch_attention::ForwardOptions;
using torch_attention::MultiHeadAttention;

/// Takes the place of a TransformerEncoderLayer, of which it keeps all but the
/// attention. LibTorch's class cannot hold another attention.
struct EncoderLayerImpl : torch::nn::Module {
  EncoderLayerImpl(
      const torch::nn::TransformerEncoderLayerImpl& old,
      int64_t max_tokens)
      : self_attn(register_module(
            "self_attn",
            torch_attention::from_multihead_attention(
                *old.self_attn,
                max_tokens,
                /*causal=*/false))),
        linear1(register_module("linear1", old.linear1)),
        dropout(register_module("dropout", old.dropout)),
        linear2(register_module("linear2", old.linear2)),
        norm1(register_module("norm1", old.norm1)),
        norm2(register_module("norm2", old.norm2)),
        dropout1(register_module("dropout1", old.dropout1)),
        dropout2(register_module("dropout2", old.dropout2)),
        activation(old.options.activation()) {}

  /// x (B, T, C)
  Tensor forward(const Tensor& x, const ForwardOptions& call) {
    const auto attended = self_attn->forward(x, call);
    const auto y = norm1->forward(x + dropout1->forward(attended));
    const auto hidden = dropout->forward(activate(linear1->forward(y)));
    return norm2->forward(y + dropout2->forward(linear2->forward(hidden)));
  }

  Tensor activate(const Tensor& x) const {
    if (const auto* function =
            std::get_if<std::function<Tensor(const Tensor&)>>(&activation)) {
      return (*function)(x);
    }
    return std::holds_alternative<torch::enumtype::kGELU>(activation)
        ? torch::gelu(x)
        : torch::relu(x);
  }

  MultiHeadAttention self_attn;
  torch::nn::Linear linear1;
  torch::nn::Dropout dropout;
  torch::nn::Linear linear2;
  torch::nn::LayerNorm norm1;
  torch::nn::LayerNorm norm2;
  torch::nn::Dropout dropout1;
  torch::nn::Dropout dropout2;
  torch::nn::activation_t activation;
};
TORCH_MODULE(EncoderLayer);

/// Takes the place of a TransformerEncoder: same arguments, same result.
struct EncoderImpl : torch::nn::Module {
  EncoderImpl(const torch::nn::TransformerEncoderImpl& old, int64_t max_tokens)
      : layers(register_module("layers", torch::nn::ModuleList())),
        norm(old.norm) {
    for (const auto& layer : *old.layers) {
      layers->push_back(EncoderLayer(
          *layer->as<torch::nn::TransformerEncoderLayer>(), max_tokens));
    }
    if (!norm.is_empty()) {
      register_module("norm", norm.ptr());
    }
  }

  /// src (T, B, C), as LibTorch has it; of src_key_padding_mask (B, T) true
  /// hides -> (T, B, C)
  Tensor forward(const Tensor& src, const Tensor& src_key_padding_mask = {}) {
    const auto call = ForwardOptions().key_padding_mask(src_key_padding_mask);
    auto x = src.transpose(0, 1); // (B, T, C), as ours have it
    for (const auto& layer : *layers) {
      x = layer->as<EncoderLayer>()->forward(x, call);
    }
    x = x.transpose(0, 1);
    return norm.is_empty() ? x : norm.forward<Tensor>(x);
  }

  torch::nn::ModuleList layers;
  torch::nn::AnyModule norm;
};
TORCH_MODULE(Encoder);

/// Returns the median of the times of a few calls, in milliseconds.
double milliseconds(const std::function<Tensor()>& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    call();
    times.push_back(
        std::chrono::duration<double, std::milli>(Clock::now() - start)
            .count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void check_same(const char* what, const Tensor& ours, const Tensor& theirs) {
  const auto difference = (ours - theirs).abs().max().item<double>();
  std::cout << what << ": largest difference " << difference << '\n';
  TORCH_CHECK(
      torch::allclose(ours, theirs, /*rtol=*/1e-4, /*atol=*/1e-5),
      what,
      ": the outputs differ");
}

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

  // The swap.
  Encoder ours(*theirs, /*max_tokens=*/kTokens);
  ours->eval();

  const torch::NoGradGuard no_gradients;
  const auto src = torch::randn({kTokens, 4, kWidth}); // (T, B, C)
  auto padding = torch::zeros({4, kTokens}, torch::kBool);
  padding[1].slice(0, 200).fill_(true);
  padding[3].slice(0, 17).fill_(true);
  check_same("whole sequences", ours(src), theirs->forward(src));
  check_same(
      "padded sequences",
      ours(src, padding),
      theirs->forward(src, {}, padding));

  std::cout << "LibTorch's: "
            << milliseconds([&] { return theirs->forward(src, {}, padding); })
            << " ms\nours: " << milliseconds([&] { return ours(src, padding); })
            << " ms\n";
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
