#include <tools/text/genai_tokenizer.h>
#include <tools/text/text_parts.h>
#include <tools/text/tokenizer_file.h>
#include <tools/text/tokens.h>

#include <check.h>

#include <algorithm>
#include <limits>

namespace torch_attention::tools {

namespace {

class BytePairTokens : public TextTokens {
 public:
  explicit BytePairTokens(const std::string& path)
      : file_(read_tokenizer_file(path)),
        genai_(
            file_.merges == nullptr ? std::make_unique<GenaiTokenizer>(path)
                                    : nullptr) {}

  std::vector<int64_t> encode(
      const std::string& text,
      std::optional<int64_t> max_length) const override {
    const auto& [before, after] = file_.around;
    const auto least = static_cast<int64_t>(before.size() + after.size());
    const auto most =
        max_length.value_or(std::numeric_limits<int64_t>::max()) - least;
    TORCH_ATTENTION_CHECK(
        most >= 0,
        "expected a max_length of {} tokens or more, but got {}",
        least,
        *max_length);
    const auto ids = encode_between(text);
    const auto count = std::min(most, static_cast<int64_t>(ids.size()));
    const auto first = file_.cuts_left ? ids.end() - count : ids.begin();
    auto tokens = before;
    tokens.insert(tokens.end(), first, first + count);
    tokens.insert(tokens.end(), after.begin(), after.end());
    return tokens;
  }

  std::string bytes(int64_t token) const override {
    const auto found = file_.bytes.find(token);
    return found == file_.bytes.end() ? "" : found->second;
  }

 private:
  /// Returns the tokens of a text without those that begin and end it.
  std::vector<int64_t> encode_between(const std::string& text) const {
    std::vector<int64_t> ids;
    for (const auto& part : text_parts(file_, text)) {
      if (part.token) {
        ids.push_back(*part.token);
      } else if (file_.merges != nullptr) {
        file_.merges->append(part.text, ids);
      } else {
        genai_->append(part.text, ids);
      }
    }
    return ids;
  }

  TokenizerFile file_;
  /// Null if the file's own merges suffice.
  std::unique_ptr<GenaiTokenizer> genai_;
};

} // namespace

std::unique_ptr<TextTokens> open_byte_pairs(const std::string& path) {
  return std::make_unique<BytePairTokens>(path);
}

} // namespace torch_attention::tools
