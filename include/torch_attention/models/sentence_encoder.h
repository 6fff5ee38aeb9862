#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/models/bert.h>
#include <torch_attention/models/export.h>
#include <torch_attention/models/options.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::models {

/// How the hidden states of a text's tokens become its vector
/// (Reimers and Gurevych 2019, "Sentence-BERT").
enum class Pooling {
  /// that of the first token
  kCls,
  /// the largest number of each element
  kMax,
  kMean,
  /// the sum, divided by the square root of the number of tokens
  kMeanSqrt,
  /// the mean, in which token t of 1 to T counts t times
  kWeightedMean,
  /// that of the last token
  kLastToken,
};

/// Options for `SentenceEncoder`: what sentence-transformers keeps next to a
/// model.
struct TORCH_ATTENTION_MODELS_API SentenceEncoderOptions {
  /// the poolings whose results, one after the other, are the vector.
  /// Default: the mean
  TORCH_ARG(std::vector<Pooling>, pooling) = {Pooling::kMean};

  /// divide vectors by their length. Default: false
  TORCH_ARG(bool, normalize) = false;

  /// the largest number of tokens; the end of longer texts is left out.
  /// Default: as many as the model takes
  TORCH_ARG(std::optional<int64_t>, max_length) = std::nullopt;

  /// text that is put before each text. Default: none
  TORCH_ARG(std::string, prompt) = "";
};

/// Options for `SentenceEncoder::encode`.
///
/// Example:
/// ```
/// encoder.encode(texts, EncodeOptions().batch_tokens(8192));
/// ```
struct TORCH_ATTENTION_MODELS_API EncodeOptions {
  /// Is given the numbers of texts and tokens that are encoded so far.
  using OnBatch = std::function<void(int64_t texts, int64_t tokens)>;

  /// tokens of a batch, with its padding; one text is always encoded.
  /// Default: 4096
  TORCH_ARG(int64_t, batch_tokens) = 4096;

  /// pad the texts of a batch instead of packing them. Default: false
  TORCH_ARG(bool, padded) = false;

  /// function that is called after each batch. Default: none
  TORCH_ARG(OnBatch, on_batch) = nullptr;
};

/// Pools packed sequences: tokens (N, C), of which sequence b has those from
/// `cu_seqlens[b]` to `cu_seqlens[b + 1] - 1`, int64 (B + 1) -> (B, P C) for P
/// poolings. Throws c10::Error for an empty sequence or none of the poolings.
///
/// Example:
/// ```
/// auto vectors = pool(hidden, cu_seqlens, {Pooling::kMean}); // (B, C)
/// ```
TORCH_ATTENTION_MODELS_API torch::Tensor pool(
    const torch::Tensor& tokens,
    const torch::Tensor& cu_seqlens,
    const std::vector<Pooling>& pooling);

/// Texts as vectors whose angles say how similar the texts are: a tokenizer, an
/// encoder and the pooling of its hidden states, as in sentence-transformers.
///
/// Example:
/// ```
/// auto encoder = sentence_encoder_from_pretrained("all-MiniLM-L6-v2");
/// auto vectors = encoder.encode({"A cat sleeps.", "A kitten rests."});
/// auto similarity = vectors[0].dot(vectors[1]);
/// ```
class TORCH_ATTENTION_MODELS_API SentenceEncoder {
 public:
  /// Returns the tokens of a text, with those of its begin and end, no more
  /// than `max_length`.
  using Tokenize = std::function<
      std::vector<int64_t>(const std::string& text, int64_t max_length)>;

  /// Throws c10::Error if `max_length` is not positive, or no pooling is given.
  SentenceEncoder(
      Bert model_,
      Tokenize tokenize,
      const SentenceEncoderOptions& options_ = {});

  /// B texts -> float32 (B, P C) on the model's device, for P poolings. Texts
  /// of similar lengths are encoded together. Records nothing for autograd.
  ///
  /// Throws c10::Error if a text has no tokens, or one that the model lacks.
  torch::Tensor encode(
      const std::vector<std::string>& texts,
      const EncodeOptions& call = {});

  /// Returns the tokens of a text after the prompt, as many as are encoded.
  std::vector<int64_t> tokens(const std::string& text) const;

  /// The largest number of tokens of a text.
  int64_t max_length() const;

  /// The options with which this object was constructed.
  const SentenceEncoderOptions options;
  Bert model;

 private:
  torch::Tensor encode_batch(
      const std::vector<const std::vector<int64_t>*>& batch,
      bool padded);

  Tokenize tokenize_;
};

/// The encoder of a folder that sentence-transformers or `save_pretrained`
/// wrote, of the types of `bert_from_pretrained`. Without a `tokenize`, its
/// tokens are those of the folder's WordPiece.
///
/// Throws c10::Error as `bert_from_pretrained`, `WordPiece` and
/// `sentence_encoder_options_from_pretrained` do.
TORCH_ATTENTION_MODELS_API SentenceEncoder sentence_encoder_from_pretrained(
    const std::string& folder,
    SentenceEncoder::Tokenize tokenize = nullptr,
    const PretrainedModelOptions& options = {});

/// The options that sentence-transformers reads from a folder: those of
/// `modules.json` and the pooling that it names, `sentence_bert_config.json`
/// (or another of its names), `tokenizer_config.json` ("model_max_length") and
/// `config_sentence_transformers.json` (the prompt by default). Without
/// `modules.json`, the mean of all tokens, and only "model_max_length".
///
/// Throws c10::Error that names the file and the field for a module or setting
/// that is not computed, such as a `Dense` layer.
TORCH_ATTENTION_MODELS_API SentenceEncoderOptions
sentence_encoder_options_from_pretrained(const std::string& folder);

} // namespace torch_attention::models
