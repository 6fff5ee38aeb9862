#include <weights/quantization_beside.h>

#include <config_file.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <unistd.h>

namespace torch_attention::weights {

namespace {

std::optional<Json> object_in(const std::string& path) {
  if (::access(path.c_str(), F_OK) != 0) {
    return std::nullopt;
  }
  try {
    return read_config_file(path);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

} // namespace

std::optional<Json> quantization_beside(const std::string& path) {
  const auto folder = folder_of(path);
  if (const auto config = object_in(folder + "config.json")) {
    for (const auto* name : {"quantization_config", "compression_config"}) {
      if (const auto object = config->get(name).as_object()) {
        return object;
      }
    }
  }
  return object_in(folder + "quantize_config.json");
}

} // namespace torch_attention::weights
