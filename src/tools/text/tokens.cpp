#include <tools/text/tokens.h>

#include <check.h>
#include <config_file.h>
#include <format_text.h>
#include <tools/text/growing_text.h>
#include <tools/text/tokenizer_file.h>
#include <torch_attention/models/word_piece.h>
#include <torch_attention/weights/gguf.h>

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

  std::string bytes(int64_t token) const override {
    return {static_cast<char>(token)};
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

  std::string bytes(int64_t token) const override {
    if (!tokenizer_.has(token)) {
      return "";
    }
    const auto& piece = tokenizer_.piece(token);
    return piece.rfind("##", 0) == 0 ? piece.substr(2) : " " + piece;
  }

  std::string label(int64_t token) const override {
    return tokenizer_.has(token) ? tokenizer_.piece(token)
                                 : std::to_string(token);
  }

 private:
  models::WordPiece tokenizer_;
};

} // namespace

std::string TextTokens::label(int64_t token) const {
  GrowingText text(*this);
  const auto complete = text.add(token);
  return complete + text.finish();
}

bool has_bytes_as_tokens(const std::string& folder) {
  const auto path = folder + "/config.json";
  return std::filesystem::exists(path) &&
      read_config_file(path).get("tokens").as_text() == "bytes";
}

std::unique_ptr<TextTokens> open_tokens(const std::string& folder) {
  if (has_bytes_as_tokens(folder)) {
    return std::make_unique<ByteTokens>();
  }
  const auto path = is_gguf(folder) ? folder : folder + "/tokenizer.json";
  const bool has_file = std::filesystem::exists(path);
  const bool has_words = has_file
      ? is_word_piece_file(path)
      : std::filesystem::exists(folder + "/vocab.txt");
  if (has_words) {
    return std::make_unique<WordPieceTokens>(models::WordPiece(folder));
  }
  TORCH_ATTENTION_CHECK(
      has_file,
      "expected a file \"{}\" for texts: without it, give tokens by --ids",
      path);
  return open_byte_pairs(path);
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

} // namespace torch_attention::tools
