#pragma once

#include <support/test.h>

#include <cstdint>
#include <string>
#include <vector>

/// The encoders of tests/golden/encoders.
namespace torch_attention::testing {

constexpr const char* kEncoders[] =
    {"bert", "bert_cased", "distilbert", "mpnet", "plain"};

/// Every so many texts have a vector.
constexpr size_t kVectorStep = 40;

inline std::string encoder_folder(const std::string& name) {
  return TORCH_ATTENTION_GOLDEN_DIR "/encoders/" + name;
}

/// Returns a tensor that `transformers` computed.
inline torch::Tensor encoder_tensor(
    const std::string& file,
    const std::string& what) {
  return read_weights(encoder_folder(file) + ".safetensors")[what];
}

/// Returns the hostile texts.
inline std::vector<std::string> hostile_texts() {
  const auto bytes = encoder_tensor("texts", "bytes");
  const auto lengths = encoder_tensor("texts", "lengths");
  const std::string all(
      reinterpret_cast<const char*>(bytes.data_ptr<uint8_t>()),
      static_cast<size_t>(bytes.numel()));
  std::vector<std::string> texts;
  size_t begin = 0;
  for (int64_t i = 0; i < lengths.numel(); ++i) {
    const auto length = static_cast<size_t>(lengths[i].item<int64_t>());
    texts.push_back(all.substr(begin, length));
    begin += length;
  }
  return texts;
}

/// Returns those of which there are vectors.
inline std::vector<std::string> texts_with_vectors() {
  const auto texts = hostile_texts();
  std::vector<std::string> chosen;
  for (size_t i = 0; i < texts.size(); i += kVectorStep) {
    chosen.push_back(texts[i]);
  }
  return chosen;
}

/// Returns the smallest cosine of the angles between rows of two matrices.
inline double smallest_cosine(
    const torch::Tensor& ours,
    const torch::Tensor& expected) {
  return torch::cosine_similarity(
             ours.to(torch::kDouble), expected.to(torch::kDouble))
      .min()
      .item<double>();
}

} // namespace torch_attention::testing
