#pragma once

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <string>

namespace torch_attention::benchmarks {

/// The ways in which LibTorch records operations.
enum class Recording {
  /// `torch::NoGradGuard`.
  kNone,
  /// `c10::InferenceMode`.
  kInference,
  /// Autograd's graph, also where no backward pass follows.
  kGraph,
};

/// Returns "no_grad", "inference_mode" or "autograd".
std::string recording_name(Recording recording);

/// Lets LibTorch record operations in one of these ways during its lifetime.
class RecordingGuard {
 public:
  explicit RecordingGuard(Recording recording)
      : inference_(recording == Recording::kInference),
        grad_(recording == Recording::kGraph) {}

 private:
  c10::InferenceMode inference_;
  c10::AutoGradMode grad_;
};

} // namespace torch_attention::benchmarks
