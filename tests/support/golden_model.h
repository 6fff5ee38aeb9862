#pragma once

#include <support/files.h>

#include <torch_attention/weights/read.h>

#include <cstdint>
#include <string>
#include <vector>

// The models of tests/golden/pretrained, and others in folders like theirs.

namespace torch_attention::testing {

constexpr int64_t kLayers = 2;

/// The folder of a model, which is its path or its name here.
inline std::string model_folder(const std::string& model) {
  if (!model.empty() && model.front() == '/') {
    return model;
  }
  return TORCH_ATTENTION_GOLDEN_DIR "/pretrained/" + model;
}

inline std::vector<std::string> models() {
  return files_in(TORCH_ATTENTION_GOLDEN_DIR "/pretrained");
}

/// A tensor of the model's golden file, or an undefined one.
inline torch::Tensor find_expected(
    const std::string& model,
    const std::string& key) {
  const auto tensors =
      read_weights(model_folder(model) + "/expected.safetensors");
  const auto* found = tensors.find(key);
  return found == nullptr ? torch::Tensor() : *found;
}

} // namespace torch_attention::testing
