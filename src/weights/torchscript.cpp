#include <weights/torchscript.h>

#include <error_message.h>

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

namespace torch_attention {

namespace {

void check_archive(const std::string& path) {
  bool is_torchscript = false;
  try {
    caffe2::serialize::PyTorchStreamReader reader(path);
    is_torchscript = reader.hasRecord("constants.pkl");
  } catch (const c10::Error& error) {
    TORCH_CHECK(
        false,
        "\"",
        path,
        "\" is cut or damaged: it begins as a zip file, but cannot be read as "
        "one (",
        error.what_without_backtrace(),
        ")");
  }
  TORCH_CHECK(
      is_torchscript,
      "\"",
      path,
      "\" is a zip file, but not a TorchScript archive (torch.save writes such "
      "files, for example). Make one in Python with "
      "torch.jit.trace(module, input).save(path)");
}

} // namespace

StateDict read_torchscript(const std::string& path) {
  check_archive(path);
  StateDict tensors;
  try {
    const auto module = torch::jit::load(path, torch::kCPU);
    for (const auto& parameter : module.named_parameters()) {
      tensors.insert(parameter.name, parameter.value.detach());
    }
    for (const auto& buffer : module.named_buffers()) {
      tensors.insert(buffer.name, buffer.value.detach());
    }
  } catch (const std::exception& error) {
    TORCH_CHECK(
        false,
        "LibTorch cannot load the TorchScript archive \"",
        path,
        "\": ",
        error_message(error));
  }
  return tensors;
}

} // namespace torch_attention
