#include <tools/load_script.h>

#include <torch/csrc/jit/serialization/import.h>

#include <check.h>
#include <regular_file.h>
#include <torch_attention/weights/inspect.h>

namespace torch_attention::tools {

torch::jit::Module load_script(
    const std::string& path,
    std::optional<c10::Device> device,
    const std::string& hint) {
  const auto info = inspect_weights(path, InspectOptions().check(true));
  TORCH_ATTENTION_CHECK(
      info.format == "TorchScript archive",
      "expected a TorchScript model, which can be run, but \"{}\" is a {}{}",
      path,
      info.format,
      hint);
  check_regular_file(path);
  return torch::jit::load(path, device);
}

} // namespace torch_attention::tools
