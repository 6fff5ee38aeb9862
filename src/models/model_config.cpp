#include <models/model_config.h>

#include <config_file.h>
#include <torch_attention/weights/gguf.h>

#include <sstream>

namespace torch_attention::models {

std::string model_config_path(const std::string& folder) {
  return is_gguf(folder) ? folder : folder + "/config.json";
}

Json read_model_config(const std::string& folder) {
  if (!is_gguf(folder)) {
    return read_config_file(folder + "/config.json");
  }
  constexpr size_t kDeepest = 8;
  std::istringstream text(config_from_gguf(folder));
  return Json::parse(text, folder, kDeepest);
}

} // namespace torch_attention::models
