#pragma once

#include <support/files.h>
#include <support/golden_model.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

// The models of tests/golden/pretrained.

namespace torch_attention::testing {

inline nlohmann::json config_of(const std::string& model) {
  return nlohmann::json::parse(read_all(model_folder(model) + "/config.json"));
}

/// A copy of a model's folder with another configuration.
class Changed {
 public:
  Changed(const std::string& model, const nlohmann::json& config) {
    for (const auto& file : files_in(model_folder(model))) {
      std::ofstream(folder_.file(file), std::ios::binary)
          << read_all(model_folder(model) + "/" + file);
    }
    std::ofstream(folder_.file("config.json")) << config;
  }

  std::string path() const {
    return folder_.path();
  }

 private:
  TemporaryFolder folder_;
};

/// The options of a layer of a model without these fields, and with a patch.
inline MultiHeadAttentionOptions options_without(
    const std::string& model,
    const std::vector<std::string>& fields,
    int64_t layer = 0,
    const nlohmann::json& patch = nlohmann::json::object()) {
  auto config = config_of(model);
  for (const auto& field : fields) {
    config.erase(field);
  }
  config.merge_patch(patch);
  const Changed changed(model, config);
  return options_from_config(changed.path(), layer);
}

inline torch::Tensor expected(
    const std::string& model,
    int64_t layer,
    const char* what) {
  const auto found = find_expected(model, c10::str(layer, ".", what));
  TORCH_CHECK(found.defined(), "no ", what, " of ", model);
  return found;
}

} // namespace torch_attention::testing
