// The functions that benchmarks/peers.py calls: our modules in Python's own
// process, with Python's own LibTorch, on the memory of Python's tensors.
//
// Sizes: B batch, T tokens, C channels in, E channels out, H heads. All tensors
// are float32, contiguous.

#include <harness/candidate.h>
#include <harness/recording.h>
#include <tools/measure.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/multi_head_attention_wrapper.h>

#include <ATen/ops/from_blob.h>
#include <torch/utils.h>

#include <iostream>
#include <memory>

#define TORCH_ATTENTION_PEERS_API __attribute__((visibility("default")))

namespace {

using namespace torch_attention;
using benchmarks::Candidate;
using benchmarks::Recording;
using benchmarks::RecordingGuard;

torch::Tensor view(float* data, at::IntArrayRef sizes) {
  return at::from_blob(data, sizes, torch::kFloat);
}

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
  Candidate* session = nullptr;
  guarded([&] {
    const auto& [B, T, C, E, H, wrapper, reference_kernel, dropout] = *shape;
    const auto x = view(input, {B, T, C});
    const auto gradient =
        cotangent != nullptr ? view(cotangent, {B, T, E}) : torch::Tensor();
    const auto with_settings = [&](auto options) {
      return options.dropout(dropout).register_mask(false).kernel(
          reference_kernel != 0 ? Kernel::kReference : Kernel::kAuto);
    };
    const auto candidate_of = [&](const auto& module) {
      torch::NoGradGuard no_grad;
      for (auto& parameter : module->parameters()) {
        parameter.copy_(view(*weights++, parameter.sizes()));
      }
      return benchmarks::module_candidate("ours", module, x, gradient);
    };
    session = new Candidate(
        wrapper != 0
            ? candidate_of(
                  std::make_shared<MultiHeadAttentionWrapperImpl>(with_settings(
                      MultiHeadAttentionWrapperOptions(C, E / H, T, H))))
            : candidate_of(std::make_shared<MultiHeadAttentionImpl>(
                  with_settings(MultiHeadAttentionOptions(C, E, T, H)))));
    return 0.0;
  });
  return session;
}

TORCH_ATTENTION_PEERS_API void free_session(void* session) {
  delete static_cast<Candidate*>(session);
}

/// Turns dropout on and off.
TORCH_ATTENTION_PEERS_API void train_session(void* session, int64_t on) {
  static_cast<Candidate*>(session)->set_dropout(on != 0);
}

/// Returns the seconds of `calls` runs, or -1 after an error. `recording` is a
/// number of `Recording`, as in peers_candidates.py.
TORCH_ATTENTION_PEERS_API double time_session(
    void* session,
    int64_t calls,
    int64_t recording) {
  return guarded([&] {
    const auto& ours = *static_cast<Candidate*>(session);
    const RecordingGuard guard(static_cast<Recording>(recording));
    return tools::seconds_of([&] { ours.run(); }, calls);
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
    const auto& ours = *static_cast<Candidate*>(session);
    const auto write = [](float* to, const torch::Tensor& from) {
      torch::NoGradGuard no_grad;
      view(to, from.sizes()).copy_(from);
    };
    {
      const RecordingGuard guard(static_cast<Recording>(recording));
      write(output, ours.run());
    }
    for (const auto& gradient : ours.take_gradients()) {
      if (gradient.defined()) {
        write(*gradients++, gradient);
      }
    }
    return 0.0;
  });
}
}
