#include <tools/model_type.h>

#include <config_file.h>
#include <torch_attention/weights/gguf.h>
#include <torch_attention/weights/inspect_pretrained.h>
#include <torch_attention/weights/pretrained.h>

#include <algorithm>
#include <exception>

namespace torch_attention::tools {

std::string model_type_in(const std::string& path) {
  try {
    if (is_gguf(path)) {
      return inspect_pretrained(path).model_type;
    }
    return read_config_file(path + "/config.json")
        .get("model_type")
        .as_text()
        .value_or("");
  } catch (const std::exception&) {
    return "";
  }
}

bool is_known_type(const std::string& model_type) {
  const auto known = pretrained_model_types();
  return std::binary_search(known.begin(), known.end(), model_type);
}

} // namespace torch_attention::tools
