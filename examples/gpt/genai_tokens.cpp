// Reads tokenizer.json by the C interface of ONNX Runtime GenAI (MIT licence).
// Its package on PyPI has the library, but no header: what is needed of that is
// declared here, and looked up when a program asks for texts.

#include "text_tokens.h"

#include <torch/types.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace gpt {

namespace {

/// Opaque types, as in `ort_genai_c.h`.
struct OgaResult;
struct OgaSequences;
struct OgaTokenizer;

/// The library's functions. Those that return an OgaResult return null unless
/// they failed.
struct Api {
  OgaResult* (*OgaCreateTokenizerFromPath)(const char*, OgaTokenizer**);
  void (*OgaDestroyTokenizer)(OgaTokenizer*);
  OgaResult* (*OgaCreateSequences)(OgaSequences**);
  void (*OgaDestroySequences)(OgaSequences*);
  OgaResult* (
      *OgaTokenizerEncode)(const OgaTokenizer*, const char*, OgaSequences*);
  OgaResult* (*OgaTokenizerDecode)(
      const OgaTokenizer*,
      const int32_t*,
      size_t,
      const char**);
  size_t (*OgaSequencesGetSequenceCount)(const OgaSequences*, size_t);
  const int32_t* (*OgaSequencesGetSequenceData)(const OgaSequences*, size_t);
  const char* (*OgaResultGetError)(const OgaResult*);
  void (*OgaDestroyResult)(OgaResult*);
  void (*OgaDestroyString)(const char*);

  void check(OgaResult* result) const {
    if (result != nullptr) {
      const std::string message = OgaResultGetError(result);
      OgaDestroyResult(result);
      C10_THROW_ERROR(Error, c10::str("tokenizer.json: ", message));
    }
  }
};

#ifdef GPT_ONNXRUNTIME
void* open_library(const char* path) {
  auto* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, "--prompt: ", dlerror());
  return library;
}

template <typename Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  TORCH_CHECK(function != nullptr, "--prompt: ", dlerror());
}

Api load_api() {
  // The second finds the first, which it needs, by its name.
  open_library(GPT_ONNXRUNTIME);
  auto* library = open_library(GPT_ONNXRUNTIME_GENAI);
  Api api{};
#define LOOK_UP(name) look_up(library, #name, api.name)
  LOOK_UP(OgaCreateTokenizerFromPath);
  LOOK_UP(OgaDestroyTokenizer);
  LOOK_UP(OgaCreateSequences);
  LOOK_UP(OgaDestroySequences);
  LOOK_UP(OgaTokenizerEncode);
  LOOK_UP(OgaTokenizerDecode);
  LOOK_UP(OgaSequencesGetSequenceCount);
  LOOK_UP(OgaSequencesGetSequenceData);
  LOOK_UP(OgaResultGetError);
  LOOK_UP(OgaDestroyResult);
  LOOK_UP(OgaDestroyString);
#undef LOOK_UP
  return api;
}
#else
Api load_api() {
  C10_THROW_ERROR(
      Error,
      "--prompt needs onnxruntime-genai, which was not found when this program "
      "was built: see its README, or give --prompt-ids");
}
#endif

/// The tokens that surround each text, such as one that begins it.
struct Template {
  std::vector<int64_t> before;
  std::vector<int64_t> after;
};

/// Reads the `post_processor` of a tokenizer.json: a template, or a list with
/// one.
void read_template(const nlohmann::json& processor, Template& result) {
  if (!processor.is_object()) {
    return;
  }
  for (const auto& part : processor.value("processors", nlohmann::json())) {
    read_template(part, result);
  }
  if (processor.value("type", "") != "TemplateProcessing") {
    return;
  }
  auto* place = &result.before;
  for (const auto& piece : processor.at("single")) {
    if (piece.contains("Sequence")) {
      place = &result.after;
      continue;
    }
    const auto& name = piece.at("SpecialToken").at("id");
    for (const auto& id :
         processor.at("special_tokens").at(name.get<std::string>()).at("ids")) {
      place->push_back(id.get<int64_t>());
    }
  }
}

/// Throws c10::Error for the kinds of which the library's tokens are not those
/// of Python, or were not compared.
void check_kind(const nlohmann::json& tokenizer) {
  const auto type = tokenizer.at("model").value("type", "");
  TORCH_CHECK(
      type == "BPE",
      "tokenizer.json: expected a model BPE but got ",
      type,
      ": give --prompt-ids");
  TORCH_CHECK(
      tokenizer.at("normalizer").dump().find("\"Prepend\"") ==
          std::string::npos,
      "tokenizer.json: the normalizer Prepend, as of Llama 2, gives other "
      "tokens here than in Python: give --prompt-ids");
}

/// A folder with the tokenizer of another, and the configurations without which
/// the library reads none.
class TokenizerFolder {
 public:
  explicit TokenizerFolder(const std::string& tokenizer) {
    namespace fs = std::filesystem;
    auto name = (fs::temp_directory_path() / "gpt-tokens-XXXXXX").string();
    TORCH_CHECK(mkdtemp(name.data()) != nullptr, "Cannot make ", name);
    path = name;
    fs::create_symlink(fs::absolute(tokenizer), path / "tokenizer.json");
    std::ofstream(path / "tokenizer_config.json")
        << R"({"tokenizer_class": "PreTrainedTokenizerFast"})";
    std::ofstream(path / "genai_config.json")
        << R"({"model": {"type": "llama", "context_length": 1}})";
  }
  ~TokenizerFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TokenizerFolder(const TokenizerFolder&) = delete;
  TokenizerFolder& operator=(const TokenizerFolder&) = delete;

  std::filesystem::path path;
};

class GenaiTokens : public TextTokens {
 public:
  explicit GenaiTokens(const std::string& path) : api_(load_api()) {
    const auto tokenizer = nlohmann::json::parse(
        std::ifstream(path), nullptr, /*allow_exceptions=*/false);
    try {
      check_kind(tokenizer);
      read_template(tokenizer.at("post_processor"), template_);
    } catch (const nlohmann::json::exception& error) {
      C10_THROW_ERROR(Error, c10::str(path, ": ", error.what()));
    }
    const TokenizerFolder copy(path);
    api_.check(api_.OgaCreateTokenizerFromPath(copy.path.c_str(), &tokenizer_));
  }
  ~GenaiTokens() override {
    if (tokenizer_ != nullptr) {
      api_.OgaDestroyTokenizer(tokenizer_);
    }
  }
  GenaiTokens(const GenaiTokens&) = delete;
  GenaiTokens& operator=(const GenaiTokens&) = delete;

  std::vector<int64_t> encode(const std::string& text) const override {
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
    auto tokens = template_.before;
    tokens.insert(tokens.end(), ids, end);
    tokens.insert(tokens.end(), template_.after.begin(), template_.after.end());
    return tokens;
  }

  std::string decode(const std::vector<int64_t>& tokens) const override {
    const std::vector<int32_t> ids(tokens.begin(), tokens.end());
    const char* text = nullptr;
    api_.check(
        api_.OgaTokenizerDecode(tokenizer_, ids.data(), ids.size(), &text));
    const std::unique_ptr<const char, void (*)(const char*)> owner(
        text, api_.OgaDestroyString);
    return text;
  }

 private:
  Api api_;
  Template template_;
  OgaTokenizer* tokenizer_ = nullptr;
};

} // namespace

std::unique_ptr<TextTokens> open_genai_tokens(const std::string& path) {
  return std::make_unique<GenaiTokens>(path);
}

} // namespace gpt
