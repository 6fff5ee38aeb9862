#pragma once

#include <torch_attention/models/bert.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace encoder {

/// How the vectors of a text's tokens become the one of the text.
enum class Pooling { kMean, kCls, kMax, kMeanSqrt };

/// The settings that `sentence-transformers` keeps beside a model.
struct SentenceConfig {
  /// Reads `modules.json` and what it names; without it, the mean of all
  /// tokens. Throws c10::Error for modules that are not known.
  static SentenceConfig read(const std::string& folder);

  Pooling pooling = Pooling::kMean;
  bool normalizes = false;
  /// The largest number of tokens; 0 for as many as the model takes.
  int64_t max_length = 0;
};

/// How many texts are computed at once, and how.
struct EncodeOptions {
  /// Tokens of a batch, with its padding.
  int64_t batch_tokens = 4096;
  /// Pads the texts of a batch, where they are packed otherwise.
  bool padded = false;
  /// Is called after each batch with the numbers of texts and tokens so far.
  std::function<void(int64_t texts, int64_t tokens)> on_batch;
};

/// Returns the tokens of a text, no more than `max_length`.
using Tokenize = std::function<
    std::vector<int64_t>(const std::string& text, int64_t max_length)>;

/// Texts as vectors: tokenizer, model and pooling of a folder.
///
/// Example:
/// ```
/// SentenceEncoder model("all-MiniLM-L6-v2");
/// auto vectors = model.encode({"A cat sleeps.", "A kitten rests."}); // (2, C)
/// auto similarity = vectors[0].dot(vectors[1]);
/// ```
class SentenceEncoder {
 public:
  /// Tokens are those of the folder's WordPiece. Throws c10::Error that says
  /// which file is missing or does not fit.
  explicit SentenceEncoder(const std::string& folder);

  /// For a tokenizer of another kind.
  SentenceEncoder(const std::string& folder, Tokenize tokenize);

  /// Returns a vector for each text, float32 (B, C), in their order.
  torch::Tensor encode(
      const std::vector<std::string>& texts,
      const EncodeOptions& options = {});

  /// Returns the tokens of a text, cut to `max_length`.
  std::vector<int64_t> tokens(const std::string& text) const;

  int64_t max_length() const;

  const SentenceConfig config;
  torch_attention::models::Bert model;

 private:
  /// Returns the vectors of the texts of one batch, (B, C).
  torch::Tensor encode_batch(
      const std::vector<const std::vector<int64_t>*>& batch,
      bool padded);

  const Tokenize tokenize_;
};

/// Pools the tokens (N, C) of B packed sequences, which begin at `cu_seqlens`
/// (B + 1), to (B, C).
torch::Tensor pool(
    const torch::Tensor& tokens,
    const torch::Tensor& cu_seqlens,
    Pooling pooling);

} // namespace encoder
