#include <torch_attention/weights/save.h>

#include <error_message.h>
#include <weights/files/write.h>
#include <weights/layouts/map.h>
#include <weights/plan.h>
#include <weights/select.h>

#include <c10/util/Exception.h>

#include <utility>

namespace torch_attention {

namespace {

StateDict as_written(StateDict tensors, const SaveOptions& options) {
  if (options.layout()) {
    tensors = convert_layout(
                  tensors,
                  Layout::automatic(),
                  *options.layout(),
                  options.num_heads())
                  .tensors;
  }
  StateDict result;
  const auto start = dotted(options.prefix());
  for (const auto& item : tensors) {
    auto tensor = item.value();
    if (options.dtype() && tensor.is_floating_point()) {
      tensor = tensor.to(*options.dtype());
    }
    result.insert(start + item.key(), std::move(tensor));
  }
  return result;
}

void write(
    const StateDict& tensors,
    const std::string& path,
    FileFormat format) {
  switch (format) {
    case FileFormat::kByExtension:
      return write_weight_file(tensors, path);
    case FileFormat::kSafetensors:
      return write_safetensors(tensors, path);
    case FileFormat::kTorch:
      return write_torch_archive(tensors, path);
  }
}

} // namespace

void save_weights(
    const torch::nn::Module& module,
    const std::string& path,
    const SaveOptions& options) {
  const torch::NoGradGuard no_grad;
  try {
    write(as_written(state_dict(module), options), path, options.format());
  } catch (const std::exception& error) {
    TORCH_CHECK(false, "save_weights(\"", path, "\"): ", error_message(error));
  }
}

} // namespace torch_attention
