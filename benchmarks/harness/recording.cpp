#include <harness/recording.h>

#include <c10/util/Exception.h>

namespace torch_attention::benchmarks {

std::string recording_name(Recording recording) {
  switch (recording) {
    case Recording::kNone:
      return "no_grad";
    case Recording::kInference:
      return "inference_mode";
    case Recording::kGraph:
      return "autograd";
  }
  TORCH_CHECK(false, "recording_name: unknown recording");
}

} // namespace torch_attention::benchmarks
