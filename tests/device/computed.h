#pragma once

#include <device/log.h>
#include <device/memory.h>
#include <device/sdpa.h>

#include <support/test.h>

#include <string>
#include <vector>

/// Attention on the device with what it took, beside the CPU's.
namespace torch_attention::testing {

using AttentionOptions = functional::ScaledDotProductAttentionFuncOptions;

constexpr auto kFlash = at::SDPBackend::flash_attention;
constexpr auto kEfficient = at::SDPBackend::efficient_attention;

struct Shape {
  int64_t B;
  int64_t H;
  int64_t G;
  int64_t T;
  int64_t S;
  int64_t D;
};

struct Kind {
  std::string name;
  AttentionOptions options;
};

/// Returns random query, key and value.
inline std::vector<torch::Tensor> inputs_of(const Shape& shape) {
  return {
      torch::randn({shape.B, shape.H, shape.T, shape.D}),
      torch::randn({shape.B, shape.G, shape.S, shape.D}),
      torch::randn({shape.B, shape.G, shape.S, shape.D})};
}

inline AttentionOptions on_device(AttentionOptions options) {
  const auto move = [](const torch::Tensor& x) {
    return x.defined() ? x.to(device()) : x;
  };
  return options.mask(move(options.mask()))
      .bias(move(options.bias()))
      .sinks(move(options.sinks()))
      .alibi_slopes(move(options.alibi_slopes()))
      .key_lengths(move(options.key_lengths()));
}

struct Computed {
  std::vector<torch::Tensor> results;
  int64_t largest = 0;
  /// The operators, to be shown where a test fails
  std::string operations;
  std::vector<std::string> waits;
};

inline std::string describe(const std::vector<Operation>& operations) {
  std::string text;
  for (const auto& [name, inputs, outputs] : operations) {
    text +=
        c10::str(name, " -> ", outputs.empty() ? Sizes() : outputs[0], "\n");
  }
  return text;
}

/// Computes on the device; with gradients of query, key and value if asked.
inline Computed compute(
    const std::vector<torch::Tensor>& inputs,
    torch::Dtype dtype,
    const AttentionOptions& options,
    bool with_gradients) {
  std::vector<torch::Tensor> leaves;
  for (const auto& x : inputs) {
    leaves.push_back(x.to(dtype).to(device()).requires_grad_(with_gradients));
  }
  auto moved = on_device(options).enable_gqa(true);
  if (moved.bias().defined()) {
    moved.bias(moved.bias().to(dtype));
  }
  const auto gradient = torch::ones_like(leaves[0]);
  Computed computed;
  {
    const DeviceLog log;
    const auto output = functional::scaled_dot_product_attention(
        leaves[0], leaves[1], leaves[2], moved);
    if (with_gradients) {
      computed.results = torch::autograd::grad({output}, leaves, {gradient});
    }
    computed.results.push_back(output.detach());
    computed.largest = log.largest();
    computed.operations = describe(log.operations());
    computed.waits = log.waits();
  }
  for (auto& x : computed.results) {
    x = x.cpu().to(torch::kFloat);
  }
  return computed;
}

inline std::vector<torch::Tensor> expected_of(
    const std::vector<torch::Tensor>& inputs,
    AttentionOptions options,
    bool with_gradients) {
  std::vector<torch::Tensor> leaves;
  for (const auto& x : inputs) {
    leaves.push_back(x.detach().clone().requires_grad_(with_gradients));
  }
  const auto output = functional::scaled_dot_product_attention(
      leaves[0], leaves[1], leaves[2], options.enable_gqa(true));
  std::vector<torch::Tensor> results;
  if (with_gradients) {
    results =
        torch::autograd::grad({output}, leaves, {torch::ones_like(leaves[0])});
  }
  results.push_back(output.detach());
  return results;
}

/// Chooses LibTorch's kernel of the device while it lives.
struct Chosen {
  explicit Chosen(at::SDPBackend backend) : before(choose(backend)) {}
  ~Chosen() {
    choose(before);
  }
  Chosen(const Chosen&) = delete;
  Chosen& operator=(const Chosen&) = delete;
  Chosen(Chosen&&) = delete;
  Chosen& operator=(Chosen&&) = delete;

  at::SDPBackend before;
};

} // namespace torch_attention::testing
