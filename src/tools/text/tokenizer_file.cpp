#include <tools/text/tokenizer_file.h>

#include <check.h>
#include <config_file.h>
#include <format_text.h>
#include <tools/text/token_bytes.h>
#include <tools/text/tokenizer_config.h>
#include <torch_attention/weights/gguf.h>

#include <c10/util/Exception.h>

#include <memory>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

namespace torch_attention::tools {

namespace {

// Gemma 3 has 262,144 tokens and 514,906 merges, in 33 million bytes.
constexpr ConfigLimits kTokenizerLimits{200'000'000, 4'000'000};

// How Llama 3 and Qwen2 split texts.
constexpr std::string_view kLlama3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kQwen2 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/// Reads it as a file, or as part of a GGUF file.
Json read_tokenizer_json(const std::string& path) {
  if (!is_gguf(path)) {
    return read_config_file(path, kTokenizerLimits);
  }
  constexpr size_t kDeepest = 16;
  std::istringstream text(tokenizer_from_gguf(path));
  return Json::parse(text, path, kDeepest, kTokenizerLimits.values);
}

/// Reads the parts of a file one by one.
class TokenizerReader {
 public:
  explicit TokenizerReader(const std::string& path)
      : path_(path), file_(read_tokenizer_json(path)) {}

  TokenizerFile read() {
    read_model(file_.get("model"));
    read_normalizer(file_.get("normalizer"));
    if (normalizer_.has_prefix_space && !normalizer_.has_replaced_spaces) {
      refuse("normalizer", file_.get("normalizer"));
    }
    read_splits(file_.get("pre_tokenizer"));
    read_surrounding(file_.get("post_processor"));
    read_decoder(file_.get("decoder"));
    for (const auto& [token, id] : file_.get("model").get("vocab").fields()) {
      set_bytes(id, token);
    }
    check_byte_tokens(file_.get("model"));
    set_bytes_of_added(file_.get("added_tokens"));
    result_.added = read_added_tokens(file_, normalizer_, path_);
    result_.refused_texts = result_.added.refused;
    read_merges(file_.get("model"));
    if (!is_gguf(path_)) {
      read_tokenizer_config(path_, file_, result_);
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(const char* name, const Json& part) const {
    C10_THROW_ERROR(
        Error,
        format_text(
            "\"{}\": the {} is of a kind whose tokens were not compared with "
            "Python's: {}. Give tokens by --ids",
            path_,
            name,
            part.shown(200)));
  }

  static std::string type_of(const Json& part) {
    return part.get("type").as_text().value_or("");
  }

  void read_model(const Json& model) {
    const auto is_set = [&](const char* name) {
      const auto& field = model.get(name);
      return !field.is_null() && field != Json(std::string()) &&
          field != Json(0.0);
    };
    const bool is_known = type_of(model) == "BPE" && !is_set("dropout") &&
        !is_set("continuing_subword_prefix") && !is_set("end_of_word_suffix");
    TORCH_ATTENTION_CHECK(
        is_known,
        "\"{}\": expected a model BPE without dropout, prefixes and "
        "suffixes, but got {}. Give tokens by --ids",
        path_,
        model.get("type").shown(60));
  }

  /// Texts with a byte that is no token have unknown tokens, or lack some.
  void check_byte_tokens(const Json& model) const {
    const bool as_letters = !normalizer_.has_replaced_spaces;
    TORCH_ATTENTION_CHECK(
        as_letters || model.get("byte_fallback").as_flag() == true,
        "\"{}\": expected byte_fallback = true for a model whose tokens are "
        "not bytes, but got {}. Give tokens by --ids",
        path_,
        model.get("byte_fallback").shown(60));
    for (const auto& token : tokens_of_bytes(as_letters)) {
      TORCH_ATTENTION_CHECK(
          model.get("vocab").contains(token),
          "\"{}\": expected a token for each byte, but the vocabulary lacks "
          "\"{}\". Give tokens by --ids",
          path_,
          token);
    }
  }

  /// A word that is a token as a whole is this one in ONNX Runtime GenAI, as
  /// "ignore_merges" asks for.
  void read_merges(const Json& model) {
    auto merges = std::make_shared<const Merges>(model, path_);
    if (normalizer_.has_replaced_spaces) {
      result_.merges = std::move(merges);
      return;
    }
    if (model.get("ignore_merges").as_flag() == true) {
      return;
    }
    TokenDecoder letters;
    letters.has_byte_letters = true;
    for (const auto& token : merges->tokens_without_merges()) {
      // Added tokens are found before the rest is split into words.
      if (added_.count(token) == 0) {
        result_.refused_texts.push_back(bytes_of_token(token, letters));
      }
    }
  }

  void read_normalizer(const Json& part) {
    const auto type = type_of(part);
    if (type == "NFC") {
      normalizer_.has_nfc = true;
    } else if (type == "Sequence") {
      for (const auto& one : part.get("normalizers").elements()) {
        read_normalizer(one);
      }
    } else if (
        type == "Prepend" && part.get("prepend").as_text() == "▁" &&
        !normalizer_.has_replaced_spaces) {
      normalizer_.has_prefix_space = true;
    } else if (is_space_replaced(part, " ", "▁")) {
      normalizer_.has_replaced_spaces = true;
    } else if (!part.is_null()) {
      refuse("normalizer", part);
    }
  }

  static bool is_space_replaced(
      const Json& part,
      const std::string& from,
      const std::string& to) {
    return type_of(part) == "Replace" &&
        part.get("pattern").get("String").as_text() == from &&
        part.get("content").as_text() == to;
  }

  /// Texts are split by words, or where spaces were replaced.
  void read_splits(const Json& part) {
    const auto& parts = part.get("pretokenizers").elements();
    // No space is left to split at.
    const bool is_known = normalizer_.has_replaced_spaces
        ? part.is_null() ||
            (is_split(part, "MergedWithPrevious") &&
             part.get("pattern").get("String").as_text() == " ")
        : is_byte_level(part, /*splits=*/true) ||
            (type_of(part) == "Sequence" && parts.size() == 2 &&
             is_split_by_words(parts[0]) &&
             is_byte_level(parts[1], /*splits=*/false));
    if (!is_known) {
      refuse("pre_tokenizer", part);
    }
  }

  static bool is_split(const Json& part, const std::string& behavior) {
    return type_of(part) == "Split" &&
        part.get("behavior").as_text() == behavior &&
        part.get("invert").as_flag() == false;
  }

  static bool is_split_by_words(const Json& part) {
    const auto regex = part.get("pattern").get("Regex").as_text().value_or("");
    return is_split(part, "Isolated") && (regex == kLlama3 || regex == kQwen2);
  }

  static bool is_byte_level(const Json& part, bool splits) {
    return type_of(part) == "ByteLevel" &&
        part.get("add_prefix_space").as_flag() == false &&
        part.get("use_regex").as_flag().value_or(true) == splits;
  }

  void read_surrounding(const Json& part) {
    auto around = read_post_processor(part);
    if (!around) {
      refuse("post_processor", part);
    }
    result_.around = *std::move(around);
  }

  void read_decoder(const Json& part) {
    const auto type = type_of(part);
    if (type == "Sequence") {
      for (const auto& one : part.get("decoders").elements()) {
        read_decoder(one);
      }
    } else if (type == "ByteLevel") {
      decoder_.has_byte_letters = true;
    } else if (type == "ByteFallback") {
      decoder_.has_byte_tokens = true;
    } else if (is_space_replaced(part, "▁", " ")) {
      decoder_.has_replaced_spaces = true;
    } else if (type != "Fuse" && !is_prefix_stripped(part)) {
      refuse("decoder", part);
    }
  }

  /// Returns whether it removes the space at the begin of a text. A text that
  /// is continued keeps it.
  bool is_prefix_stripped(const Json& part) const {
    return normalizer_.has_prefix_space && type_of(part) == "Strip" &&
        part.get("content").as_text() == " " &&
        part.get("start").as_integer() == 1 &&
        part.get("stop").as_integer() == 0;
  }

  void set_bytes(const Json& id, const std::string& token) {
    if (const auto number = id.as_integer()) {
      result_.bytes[*number] = bytes_of_token(token, decoder_);
    }
  }

  /// Special tokens are no text.
  void set_bytes_of_added(const Json& tokens) {
    for (const auto& token : tokens.elements()) {
      const auto content = token.get("content").as_text().value_or("");
      const bool is_special = token.get("special").as_flag().value_or(false);
      set_bytes(token.get("id"), is_special ? "" : content);
      added_.insert(content);
    }
  }

  const std::string& path_;
  Json file_;
  TokenizerFile result_;
  TextNormalizer& normalizer_ = result_.normalizer;
  TokenDecoder decoder_;
  std::set<std::string> added_;
};

} // namespace

TokenizerFile read_tokenizer_file(const std::string& path) {
  return TokenizerReader(path).read();
}

bool is_word_piece_file(const std::string& path) {
  const auto tokenizer = read_tokenizer_json(path);
  const auto& model = tokenizer.get("model");
  return model.get("type").as_text() == "WordPiece" ||
      (!model.contains("type") && model.contains("max_input_chars_per_word"));
}

} // namespace torch_attention::tools
