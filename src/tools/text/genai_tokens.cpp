#include <tools/text/genai_library.h>
#include <tools/text/prepared_text.h>
#include <tools/text/tokenizer_file.h>
#include <tools/text/tokens.h>

#include <check.h>
#include <json_tree.h>
#include <torch_attention/weights/gguf.h>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

namespace torch_attention::tools {

namespace {

// As many as the reader of the file takes.
constexpr size_t kMostValues = 4'000'000;

/// Returns the text of a tokenizer.json, or of a GGUF file's tokenizer.
std::string tokenizer_text(const std::string& path) {
  if (is_gguf(path)) {
    return tokenizer_from_gguf(path);
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  TORCH_ATTENTION_CHECK(file, "cannot read \"{}\"", path);
  return text.str();
}

/// Returns it without the space before texts: the library does not put it
/// there, and `encode` does.
std::string without_prefix_space(const std::string& text) {
  constexpr size_t kDeepest = 64;
  std::istringstream stream(text);
  auto parts = Json::parse(stream, "tokenizer.json", kDeepest, kMostValues);
  Json::List kept;
  for (const auto& step :
       parts.get("normalizer").get("normalizers").elements()) {
    if (step.get("type").as_text() != "Prepend") {
      kept.push_back(step);
    }
  }
  parts.find_to_change("normalizer")->set("normalizers", Json(std::move(kept)));
  return nlohmann::json(parts).dump();
}

/// A folder with the tokenizer of another, and the configurations without which
/// the library reads none.
class TokenizerFolder {
 public:
  TokenizerFolder(const std::string& tokenizer, bool has_prefix_space) {
    namespace fs = std::filesystem;
    std::string text;
    if (has_prefix_space) {
      text = without_prefix_space(tokenizer_text(tokenizer));
    } else if (is_gguf(tokenizer)) {
      text = tokenizer_text(tokenizer);
    }
    auto name = (fs::temp_directory_path() / "torch-attention-XXXXXX").string();
    TORCH_ATTENTION_CHECK(
        mkdtemp(name.data()) != nullptr, "cannot make {}", name);
    path_ = name;
    const auto copy = path_ / "tokenizer.json";
    if (text.empty()) {
      fs::create_symlink(fs::absolute(tokenizer), copy);
    } else {
      std::ofstream(copy) << text;
    }
    std::ofstream(path_ / "tokenizer_config.json")
        << R"({"tokenizer_class": "PreTrainedTokenizerFast"})";
    std::ofstream(path_ / "genai_config.json")
        << R"({"model": {"type": "llama", "context_length": 1}})";
  }
  ~TokenizerFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TokenizerFolder(const TokenizerFolder&) = delete;
  TokenizerFolder& operator=(const TokenizerFolder&) = delete;
  TokenizerFolder(TokenizerFolder&&) = delete;
  TokenizerFolder& operator=(TokenizerFolder&&) = delete;

  const char* path() const {
    return path_.c_str();
  }

 private:
  std::filesystem::path path_;
};

class GenaiTokens : public TextTokens {
 public:
  explicit GenaiTokens(const std::string& path)
      : file_(read_tokenizer_file(path)), api_(genai_library()) {
    const TokenizerFolder copy(path, file_.has_prefix_space);
    api_.check(api_.OgaCreateTokenizerFromPath(copy.path(), &tokenizer_));
  }
  ~GenaiTokens() override {
    if (tokenizer_ != nullptr) {
      api_.OgaDestroyTokenizer(tokenizer_);
    }
  }
  GenaiTokens(const GenaiTokens&) = delete;
  GenaiTokens& operator=(const GenaiTokens&) = delete;
  GenaiTokens(GenaiTokens&&) = delete;
  GenaiTokens& operator=(GenaiTokens&&) = delete;

  std::vector<int64_t> encode(
      const std::string& text,
      std::optional<int64_t> max_length) const override {
    const auto ids = encode_between(prepared_text(file_, text));
    const auto around =
        static_cast<int64_t>(file_.before.size() + file_.after.size());
    const auto most =
        max_length.value_or(std::numeric_limits<int64_t>::max()) - around;
    TORCH_ATTENTION_CHECK(
        most >= 0,
        "expected a max_length of {} tokens or more, but got {}",
        around,
        *max_length);
    const auto count = std::min(most, static_cast<int64_t>(ids.size()));
    auto tokens = file_.before;
    tokens.insert(tokens.end(), ids.begin(), ids.begin() + count);
    tokens.insert(tokens.end(), file_.after.begin(), file_.after.end());
    return tokens;
  }

  std::string bytes(int64_t token) const override {
    const auto found = file_.bytes.find(token);
    return found == file_.bytes.end() ? "" : found->second;
  }

 private:
  /// Returns the tokens of a text without those that begin and end it.
  std::vector<int64_t> encode_between(const std::string& text) const {
    OgaSequences* sequences = nullptr;
    api_.check(api_.OgaCreateSequences(&sequences));
    const std::unique_ptr<OgaSequences, void (*)(OgaSequences*)> owner(
        sequences, api_.OgaDestroySequences);
    api_.check(api_.OgaTokenizerEncode(tokenizer_, text.c_str(), sequences));
    const auto* ids = api_.OgaSequencesGetSequenceData(sequences, 0);
    const auto* end = ids + api_.OgaSequencesGetSequenceCount(sequences, 0);
    TORCH_CHECK(
        std::all_of(ids, end, [](int32_t id) { return id >= 0; }),
        "tokenizer.json: the text has characters that it has no tokens for");
    return {ids, end};
  }

  TokenizerFile file_;
  const GenaiLibrary& api_;
  OgaTokenizer* tokenizer_ = nullptr;
};

} // namespace

std::unique_ptr<TextTokens> open_genai_tokens(const std::string& path) {
  return std::make_unique<GenaiTokens>(path);
}

} // namespace torch_attention::tools
