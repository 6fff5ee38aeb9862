#pragma once

#include <support/test.h>

#include <torch_attention/models/language_model.h>

#include <memory>
#include <string>
#include <vector>

/// The decoders of tests/golden/models.
namespace torch_attention::testing {

constexpr const char* kDecoders[] = {
    "gpt2",
    "gpt2_untied",
    "llama",
    "llama_3_1",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_with_images",
    "drawn_gemma_0",
    "drawn_gemma_1",
    "drawn_gemma2_0",
    "drawn_gemma2_1",
    "drawn_gemma3_text_0",
    "drawn_gemma3_text_1",
    "drawn_gpt2_0",
    "drawn_gpt2_1",
    "drawn_llama_0",
    "drawn_llama_1",
    "drawn_mistral_0",
    "drawn_mistral_1",
    "drawn_qwen2_0",
    "drawn_qwen2_1",
    "drawn_qwen3_0",
    "drawn_qwen3_1"};

inline std::string decoder_folder(const std::string& name) {
  return TORCH_ATTENTION_GOLDEN_DIR "/models/" + name;
}

/// Returns a tensor that `transformers` computed.
inline torch::Tensor expected_of(
    const std::string& name,
    const std::string& what) {
  return read_weights(decoder_folder(name) + "/expected.safetensors")[what];
}

/// Returns the prompts without their padding.
inline std::vector<std::vector<int64_t>> prompts_of(const std::string& name) {
  const auto padded = expected_of(name, "prompts");
  const auto lengths = expected_of(name, "lengths");
  std::vector<std::vector<int64_t>> prompts;
  for (int64_t b = 0; b < padded.size(0); ++b) {
    const auto row =
        padded[b].slice(0, -lengths[b].item<int64_t>()).contiguous();
    prompts.emplace_back(
        row.data_ptr<int64_t>(), row.data_ptr<int64_t>() + row.numel());
  }
  return prompts;
}

} // namespace torch_attention::testing
