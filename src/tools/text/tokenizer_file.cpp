#include <tools/text/tokenizer_file.h>

#include <check.h>
#include <config_file.h>
#include <format_text.h>
#include <tools/text/composed.h>
#include <tools/text/merges.h>
#include <tools/text/token_bytes.h>
#include <tools/text/tokenizer_config.h>
#include <torch_attention/weights/gguf.h>

#include <c10/util/Exception.h>

#include <set>
#include <sstream>
#include <string_view>

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
    if (result_.has_prefix_space && !result_.has_replaced_spaces) {
      refuse("normalizer", file_.get("normalizer"));
    }
    read_splits(file_.get("pre_tokenizer"));
    read_post_processor(file_.get("post_processor"));
    read_decoder(file_.get("decoder"));
    for (const auto& [token, id] : file_.get("model").get("vocab").fields()) {
      set_bytes(id, token);
    }
    check_byte_tokens(file_.get("model"));
    read_added(file_.get("added_tokens"));
    refuse_whole_words(file_.get("model"));
    if (!is_gguf(path_)) {
      check_tokenizer_config(path_, file_, result_);
    }
    return result_;
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

  int64_t id_of(const Json& id, const Json& part) const {
    const auto value = id.as_integer();
    if (!value) {
      refuse("post_processor", part);
    }
    return *value;
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
    const bool as_letters = !result_.has_replaced_spaces;
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

  /// Bytes are merged to words, unless a word is a token as a whole. Text whose
  /// spaces are letters is not split into words.
  void refuse_whole_words(const Json& model) {
    if (result_.has_replaced_spaces ||
        model.get("ignore_merges").as_flag() == true) {
      return;
    }
    TokenDecoder letters;
    letters.has_byte_letters = true;
    for (const auto& token : tokens_without_merges(model, path_)) {
      // Added tokens are found before the rest is split into words.
      if (added_.count(token) == 0) {
        result_.refused_texts.push_back(bytes_of_token(token, letters));
      }
    }
  }

  void read_normalizer(const Json& part) {
    const auto type = type_of(part);
    if (type == "NFC") {
      result_.has_nfc = true;
    } else if (type == "Sequence") {
      for (const auto& one : part.get("normalizers").elements()) {
        read_normalizer(one);
      }
    } else if (
        type == "Prepend" && part.get("prepend").as_text() == "▁" &&
        !result_.has_replaced_spaces) {
      result_.has_prefix_space = true;
    } else if (is_space_replaced(part, " ", "▁")) {
      result_.has_replaced_spaces = true;
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
    const bool is_known = result_.has_replaced_spaces
        ? is_split(part, "MergedWithPrevious") &&
            part.get("pattern").get("String").as_text() == " "
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

  void read_post_processor(const Json& part) {
    const auto type = type_of(part);
    if (type == "Sequence") {
      for (const auto& one : part.get("processors").elements()) {
        read_post_processor(one);
      }
    } else if (type == "TemplateProcessing") {
      read_template(part);
    } else if (type == "RobertaProcessing") {
      const auto second = [&](const char* name) {
        const auto& pair = part.get(name).elements();
        return id_of(pair.size() == 2 ? pair[1] : part, part);
      };
      result_.before.push_back(second("cls"));
      result_.after.push_back(second("sep"));
    } else if (!part.is_null() && type != "ByteLevel") {
      refuse("post_processor", part);
    }
  }

  void read_template(const Json& part) {
    auto* place = &result_.before;
    int64_t texts = 0;
    for (const auto& piece : part.get("single").elements()) {
      if (piece.contains("Sequence")) {
        place = &result_.after;
        ++texts;
        continue;
      }
      const auto name = piece.get("SpecialToken").get("id").as_text();
      const auto& ids =
          part.get("special_tokens").get(name.value_or("")).get("ids");
      if (!ids.is_list()) {
        refuse("post_processor", part);
      }
      for (const auto& id : ids.elements()) {
        place->push_back(id_of(id, part));
      }
    }
    if (texts != 1) {
      refuse("post_processor", part);
    }
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
    return result_.has_prefix_space && type_of(part) == "Strip" &&
        part.get("content").as_text() == " " &&
        part.get("start").as_integer() == 1 &&
        part.get("stop").as_integer() == 0;
  }

  void set_bytes(const Json& id, const std::string& token) {
    if (const auto number = id.as_integer()) {
      result_.bytes[*number] = bytes_of_token(token, decoder_);
    }
  }

  void read_added(const Json& tokens) {
    for (const auto& token : tokens.elements()) {
      const auto is_set = [&](const char* name) {
        return token.get(name).as_flag().value_or(false);
      };
      const auto content = token.get("content").as_text();
      set_bytes(token.get("id"), is_set("special") ? "" : content.value_or(""));
      if (!content || content->empty()) {
        continue; // never found in a text
      }
      added_.insert(*content);
      const auto searched =
          is_set("normalized") ? normalized(*content) : *content;
      if (!is_set("normalized")) {
        result_.raw_tokens.push_back(*content);
      }
      const bool is_changed = searched != *content ||
          (is_set("normalized") && result_.has_replaced_spaces &&
           content->find("▁") != std::string::npos);
      if (result_.has_prefix_space || is_set("lstrip") || is_set("rstrip") ||
          is_set("single_word") || is_changed) {
        result_.refused_texts.push_back(searched);
      }
    }
  }

  std::string normalized(const std::string& text) const {
    if (result_.has_nfc) {
      return composed(text);
    }
    std::string letters;
    for (const auto letter : text) {
      letters += letter == ' ' && result_.has_replaced_spaces
          ? "▁"
          : std::string(1, letter);
    }
    return letters;
  }

  const std::string& path_;
  Json file_;
  TokenizerFile result_;
  TokenDecoder decoder_;
  std::set<std::string> added_;
};

} // namespace

TokenizerFile read_tokenizer_file(const std::string& path) {
  return TokenizerReader(path).read();
}

} // namespace torch_attention::tools
