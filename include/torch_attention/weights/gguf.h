#pragma once

#include <torch_attention/export.h>

#include <string>

namespace torch_attention {

/// Returns whether `path` is a file that begins as a GGUF file of llama.cpp
/// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
///
/// Functions that take the folder of a model, such as
/// `attention_from_pretrained`, take the path of a GGUF file, too.
TORCH_ATTENTION_API bool is_gguf(const std::string& path);

/// Returns the text of the `config.json` that transformers has for the model of
/// a GGUF file: its metadata in the fields of the class LlamaConfig,
/// MistralConfig, Qwen2Config, Qwen3Config, GemmaConfig, Gemma2Config,
/// Gemma3TextConfig, GPT2Config or BertConfig.
///
/// Where llama.cpp needs no metadata, its code decides: the factor of scores
/// and the order of windows in Gemma 2 and 3. Factors of frequencies in the
/// tensor `rope_freqs.weight` (Llama 3.1) become those of `longrope`.
///
/// Throws c10::Error, which names the key, for another architecture, for
/// metadata that is missing, of another type or impossible, and for metadata of
/// the model that is not known.
///
/// Example:
/// ```
/// std::cout << config_from_gguf("Qwen3-0.6B-Q8_0.gguf");
/// ```
TORCH_ATTENTION_API std::string config_from_gguf(const std::string& path);

/// Returns the text of a `tokenizer.json` with the tokenizer of a GGUF file:
/// byte pairs as of GPT-2, Llama 3 and Qwen2 (`tokenizer.ggml.pre` is gpt-2,
/// llama-bpe or qwen2), SentencePiece's byte pairs as of Llama 2 and Gemma, and
/// WordPiece as of BERT without upper case.
///
/// Throws c10::Error, which names the key, for another tokenizer, and for
/// metadata that is missing, of another type or contradictory.
///
/// Example:
/// ```
/// std::ofstream("tokenizer.json") << tokenizer_from_gguf("model.gguf");
/// ```
TORCH_ATTENTION_API std::string tokenizer_from_gguf(const std::string& path);

} // namespace torch_attention
