#include <tools/text/tokenizer_file.h>

#include <check.h>
#include <config_file.h>
#include <format_text.h>
#include <tools/text/token_bytes.h>

#include <c10/util/Exception.h>

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

/// Reads the parts of a file one by one.
class TokenizerReader {
 public:
  explicit TokenizerReader(const std::string& path)
      : path_(path), file_(read_config_file(path, kTokenizerLimits)) {}

  TokenizerFile read() {
    read_model(file_.get("model"));
    read_normalizer(file_.get("normalizer"));
    read_splits(file_.get("pre_tokenizer"));
    read_post_processor(file_.get("post_processor"));
    read_decoder(file_.get("decoder"));
    for (const auto& [token, id] : file_.get("model").get("vocab").fields()) {
      set_bytes(id, token);
    }
    read_added(file_.get("added_tokens"));
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

  void read_normalizer(const Json& part) {
    const auto type = type_of(part);
    if (type == "NFC") {
      result_.has_nfc = true;
    } else if (type == "Sequence") {
      for (const auto& one : part.get("normalizers").elements()) {
        read_normalizer(one);
      }
    } else if (is_space_replaced(part, " ", "▁")) {
      has_replaced_spaces_ = true;
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
    const bool is_known = has_replaced_spaces_
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
    } else if (type != "Fuse") {
      refuse("decoder", part);
    }
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
      if (content &&
          (is_set("lstrip") || is_set("rstrip") || is_set("single_word"))) {
        result_.refused_texts.push_back(*content);
      }
    }
  }

  const std::string& path_;
  Json file_;
  TokenizerFile result_;
  TokenDecoder decoder_;
  bool has_replaced_spaces_ = false;
};

} // namespace

TokenizerFile read_tokenizer_file(const std::string& path) {
  return TokenizerReader(path).read();
}

} // namespace torch_attention::tools
