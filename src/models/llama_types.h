#pragma once

#include <array>
#include <string>

namespace torch_attention::models {

/// The values of `model_type` that a `Llama` computes.
constexpr std::array kLlamaTypes{
    "gemma",
    "gemma2",
    "gemma3_text",
    "llama",
    "mistral",
    "qwen2",
    "qwen3"};

bool is_llama_like(const std::string& model_type);

} // namespace torch_attention::models
