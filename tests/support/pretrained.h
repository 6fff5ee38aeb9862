#pragma once

#include <support/files.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

// The models of tests/golden/pretrained.

namespace torch_attention::testing {

constexpr int64_t kLayers = 2;

inline std::string model_folder(const std::string& model) {
  return TORCH_ATTENTION_GOLDEN_DIR "/pretrained/" + model;
}

inline std::vector<std::string> models() {
  return files_in(TORCH_ATTENTION_GOLDEN_DIR "/pretrained");
}

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

/// A tensor of the model's golden file, or an undefined one.
inline torch::Tensor find_expected(
    const std::string& model,
    const std::string& key) {
  const auto tensors =
      read_weights(model_folder(model) + "/expected.safetensors");
  const auto* found = tensors.find(key);
  return found == nullptr ? torch::Tensor() : *found;
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
