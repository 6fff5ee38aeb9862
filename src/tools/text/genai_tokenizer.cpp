#include <tools/text/genai_tokenizer.h>

#include <check.h>
#include <torch_attention/weights/gguf.h>

#include <c10/util/Exception.h>

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

namespace torch_attention::tools {

namespace {

/// A folder with the tokenizer of another, and the configurations without which
/// the library reads none.
class TokenizerFolder {
 public:
  explicit TokenizerFolder(const std::string& tokenizer) {
    namespace fs = std::filesystem;
    auto name = (fs::temp_directory_path() / "torch-attention-XXXXXX").string();
    TORCH_ATTENTION_CHECK(
        mkdtemp(name.data()) != nullptr, "cannot make {}", name);
    path_ = name;
    const auto copy = path_ / "tokenizer.json";
    if (is_gguf(tokenizer)) {
      std::ofstream(copy) << tokenizer_from_gguf(tokenizer);
    } else {
      fs::create_symlink(fs::absolute(tokenizer), copy);
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

} // namespace

GenaiTokenizer::GenaiTokenizer(const std::string& path)
    : api_(genai_library()) {
  const TokenizerFolder copy(path);
  api_.check(api_.OgaCreateTokenizerFromPath(copy.path(), &tokenizer_));
}

GenaiTokenizer::~GenaiTokenizer() {
  api_.OgaDestroyTokenizer(tokenizer_);
}

void GenaiTokenizer::append(const std::string& text, std::vector<int64_t>& ids)
    const {
  OgaSequences* sequences = nullptr;
  api_.check(api_.OgaCreateSequences(&sequences));
  const std::unique_ptr<OgaSequences, void (*)(OgaSequences*)> owner(
      sequences, api_.OgaDestroySequences);
  api_.check(api_.OgaTokenizerEncode(tokenizer_, text.c_str(), sequences));
  const auto* first = api_.OgaSequencesGetSequenceData(sequences, 0);
  const auto* end = first + api_.OgaSequencesGetSequenceCount(sequences, 0);
  TORCH_CHECK(
      std::all_of(first, end, [](int32_t id) { return id >= 0; }),
      "tokenizer.json: the text has characters that it has no tokens for");
  ids.insert(ids.end(), first, end);
}

} // namespace torch_attention::tools
