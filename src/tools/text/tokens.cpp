#include <tools/text/tokens.h>

#include <check.h>
#include <config_file.h>
#include <format_text.h>
#include <torch_attention/models/word_piece.h>

#include <algorithm>
#include <filesystem>
#include <istream>
#include <ostream>
#include <utility>

namespace torch_attention::tools {

namespace {

class ByteTokens : public TextTokens {
 public:
  std::vector<int64_t> encode(
      const std::string& text,
      std::optional<int64_t> max_length) const override {
    std::vector<int64_t> tokens;
    for (const auto byte : text) {
      tokens.push_back(static_cast<unsigned char>(byte));
    }
    if (max_length && static_cast<int64_t>(tokens.size()) > *max_length) {
      tokens.resize(static_cast<size_t>(*max_length));
    }
    return tokens;
  }

  std::string decode(const std::vector<int64_t>& tokens) const override {
    std::string text;
    for (const auto token : tokens) {
      text.push_back(static_cast<char>(token));
    }
    return text;
  }
};

class WordPieceTokens : public TextTokens {
 public:
  explicit WordPieceTokens(models::WordPiece tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  std::vector<int64_t> encode(
      const std::string& text,
      std::optional<int64_t> max_length) const override {
    return tokenizer_.encode(text, max_length);
  }

  /// Returns the pieces, with spaces between them: encoders write no text.
  std::string decode(const std::vector<int64_t>& tokens) const override {
    std::string text;
    for (const auto token : tokens) {
      text += (text.empty() ? "" : " ") + tokenizer_.piece(token);
    }
    return text;
  }

  std::string label(int64_t token) const override {
    return tokenizer_.has(token) ? tokenizer_.piece(token)
                                 : std::to_string(token);
  }

 private:
  models::WordPiece tokenizer_;
};

/// Stands for bytes that are no character, or not yet one.
const std::string kReplacement = "\xEF\xBF\xBD";

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() &&
      text.compare(text.size() - end.size(), end.size(), end) == 0;
}

} // namespace

bool has_bytes_as_tokens(const std::string& folder) {
  const auto path = folder + "/config.json";
  return std::filesystem::exists(path) &&
      read_config_file(path).get("tokens").as_text() == "bytes";
}

std::unique_ptr<TextTokens> open_tokens(const std::string& folder) {
  if (has_bytes_as_tokens(folder)) {
    return std::make_unique<ByteTokens>();
  }
  if (auto tokens = open_word_pieces(folder)) {
    return tokens;
  }
  const auto path = folder + "/tokenizer.json";
  TORCH_ATTENTION_CHECK(
      std::filesystem::exists(path),
      "expected a file \"{}\" for texts: without it, give tokens by --ids",
      path);
  return open_genai_tokens(path);
}

std::unique_ptr<TextTokens> open_word_pieces(const std::string& folder) {
  try {
    return std::make_unique<WordPieceTokens>(models::WordPiece(folder));
  } catch (const c10::Error&) {
    return nullptr;
  }
}

void print_tokens(
    const std::string& folder,
    std::istream& in,
    std::ostream& out) {
  const auto tokens = open_tokens(folder);
  for (std::string line; std::getline(in, line);) {
    out << format_text("{}\n", fmt::join(tokens->encode(line), ","));
  }
}

std::string GrowingText::add(int64_t token) {
  all_.push_back(token);
  const auto text = tokens_.decode(all_);
  return ends_with(text, kReplacement) ? "" : take(text);
}

std::string GrowingText::finish() {
  return take(tokens_.decode(all_));
}

std::string GrowingText::take(const std::string& text) {
  const auto from = std::min(shown_, text.size());
  shown_ = text.size();
  return text.substr(from);
}

} // namespace torch_attention::tools
