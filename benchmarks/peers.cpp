// The functions that benchmarks/peers.py calls: our modules in Python's own
// process, with Python's own LibTorch, on the memory of Python's tensors.
//
// Sizes: B batch, T tokens, C channels in, E channels out, H heads. All tensors
// are float32, contiguous.

#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/multi_head_attention_wrapper.h>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/utils.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <memory>

#define TORCH_ATTENTION_PEERS_API __attribute__((visibility("default")))

namespace {

using torch_attention::Kernel;
using torch_attention::MultiHeadAttentionImpl;
using torch_attention::MultiHeadAttentionOptions;
using torch_attention::MultiHeadAttentionWrapperImpl;
using torch_attention::MultiHeadAttentionWrapperOptions;

/// The ways in which LibTorch records operations; the same numbers as in
/// peers.py.
enum Recording { kNoGrad = 0, kInference = 1, kAutograd = 2 };

torch::Tensor view(float* data, at::IntArrayRef sizes) {
  return at::from_blob(data, sizes, torch::kFloat);
}

/// A module with an input of its own.
struct Session {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor&)> forward;
  torch::Tensor input;
  torch::Tensor cotangent;

  template <typename Impl>
  void hold(const std::shared_ptr<Impl>& impl) {
    module = impl;
    forward = [impl](const torch::Tensor& x) { return impl->forward(x); };
  }

  torch::Tensor run() {
    if (!cotangent.defined()) {
      return forward(input);
    }
    input.mutable_grad().reset();
    module->zero_grad();
    auto output = forward(input);
    output.backward(cotangent);
    return output;
  }
};

/// Calls the function. Returns -1 after an error, and prints it.
template <typename Function>
double guarded(const Function& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return -1;
  }
}

} // namespace

extern "C" {

/// The sizes and settings of a session.
struct PeersShape {
  int64_t B, T, C, E, H;
  /// 1: MultiHeadAttentionWrapper, with heads of E / H; 0: MultiHeadAttention.
  int64_t wrapper;
  int64_t reference_kernel;
  double dropout;
};

/// Makes a session, and copies the weights, which are in the order of Python's
/// `parameters()`. Uses the memory of `input` (B, T, C) and of `cotangent` (B,
/// T, E), which is null for no backward pass. Returns null after an error.
TORCH_ATTENTION_PEERS_API void* make_session(
    const PeersShape* shape,
    float* const* weights,
    float* input,
    float* cotangent) {
  Session* session = nullptr;
  guarded([&] {
    const auto& [B, T, C, E, H, wrapper, reference_kernel, dropout] = *shape;
    const auto is_wrapper = wrapper != 0;
    const auto with_settings = [&](auto options) {
      return options.dropout(dropout).register_mask(false).kernel(
          reference_kernel != 0 ? Kernel::kReference : Kernel::kAuto);
    };
    auto made = std::make_unique<Session>();
    if (is_wrapper) {
      made->hold(std::make_shared<MultiHeadAttentionWrapperImpl>(
          with_settings(MultiHeadAttentionWrapperOptions(C, E / H, T, H))));
    } else {
      made->hold(std::make_shared<MultiHeadAttentionImpl>(
          with_settings(MultiHeadAttentionOptions(C, E, T, H))));
    }
    torch::NoGradGuard no_grad;
    for (auto& parameter : made->module->parameters()) {
      parameter.copy_(view(*weights++, parameter.sizes()));
    }
    made->input = view(input, {B, T, C});
    if (cotangent != nullptr) {
      made->cotangent = view(cotangent, {B, T, E});
      made->input.set_requires_grad(true);
    }
    session = made.release();
    return 0.0;
  });
  return session;
}

TORCH_ATTENTION_PEERS_API void free_session(void* session) {
  delete static_cast<Session*>(session);
}

/// Turns dropout on and off.
TORCH_ATTENTION_PEERS_API void train_session(void* session, int64_t on) {
  static_cast<Session*>(session)->module->train(on != 0);
}

/// Returns the seconds of `calls` runs, or -1 after an error.
TORCH_ATTENTION_PEERS_API double time_session(
    void* session,
    int64_t calls,
    int64_t recording) {
  return guarded([&] {
    auto& ours = *static_cast<Session*>(session);
    const c10::InferenceMode inference(recording == kInference);
    const c10::AutoGradMode grad(recording == kAutograd);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) {
      ours.run();
    }
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - start;
    return seconds.count();
  });
}

/// Runs once. Writes the output (B, T, E) and, with backward, the gradients of
/// input and parameters to `gradients`. Returns 0, or -1 after an error.
TORCH_ATTENTION_PEERS_API double run_session(
    void* session,
    int64_t recording,
    float* output,
    float* const* gradients) {
  return guarded([&] {
    auto& ours = *static_cast<Session*>(session);
    torch::Tensor result;
    {
      const c10::InferenceMode inference(recording == kInference);
      const c10::AutoGradMode grad(recording == kAutograd);
      result = ours.run();
    }
    torch::NoGradGuard no_grad;
    const auto write = [](float* to, const torch::Tensor& from) {
      view(to, from.sizes()).copy_(from);
    };
    write(output, result);
    if (ours.cotangent.defined()) {
      write(*gradients++, ours.input.grad());
      for (const auto& parameter : ours.module->parameters()) {
        write(*gradients++, parameter.grad());
      }
    }
    return 0.0;
  });
}
}
