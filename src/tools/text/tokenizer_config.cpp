#include <tools/text/tokenizer_config.h>

#include <check.h>
#include <config_file.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_attention::tools {

namespace {

constexpr const char* kDecoder = "added_tokens_decoder";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() &&
      text.substr(text.size() - end.size()) == end;
}

/// Compares the options of a folder's tokenizer with its tokenizer.json.
class ConfigChecker {
 public:
  ConfigChecker(
      const std::string& path,
      const Json& tokenizer,
      const TokenizerFile& file)
      : tokenizer_path_(path), tokenizer_(tokenizer), file_(file) {
    const auto folder = std::filesystem::path(path).parent_path();
    path_ = (folder / "tokenizer_config.json").string();
    config_ = read_config_if_there(path_);
    auto fields = config_;
    // transformers reads the older file only without this field.
    if (!config_.contains(kDecoder)) {
      fields.update(
          read_config_if_there((folder / "special_tokens_map.json").string()));
    }
    fields_ = std::move(fields);
  }

  void check() const {
    check_class();
    check_switches();
    check_surrounding();
    check_tokens();
  }

 private:
  [[noreturn]] void refuse(const std::string& expected, const std::string& got)
      const {
    C10_THROW_ERROR(
        Error,
        format_text(
            "\"{}\": expected {}, as in \"{}\", but got {}: transformers would "
            "give other tokens. Give tokens by --ids",
            path_,
            expected,
            tokenizer_path_,
            got));
  }

  /// Returns the `tokenizer_class` without "Fast", empty if there is none.
  std::string class_name() const {
    auto name = config_.get("tokenizer_class").as_text().value_or("");
    const std::string fast = "Fast";
    if (ends_with(name, fast)) {
      name.resize(name.size() - fast.size());
    }
    return name;
  }

  /// Returns whether transformers takes all parts from tokenizer.json, and not
  /// only the tokens and merges.
  bool is_generic_class() const {
    const auto name = class_name();
    // Without a letter for a space, it takes LlamaTokenizer as a generic class.
    return name.empty() || name == "PreTrainedTokenizer" ||
        name == "TokenizersBackend" ||
        (name == "LlamaTokenizer" && !file_.has_replaced_spaces);
  }

  /// Returns the classes that build such a tokenizer themselves.
  std::vector<std::string> fitting_classes() const {
    const auto& splits = tokenizer_.get("pre_tokenizer");
    const auto& parts = splits.get("pretokenizers").elements();
    const auto regex = parts.empty()
        ? std::string()
        : parts[0].get("pattern").get("Regex").as_text().value_or("");
    if (tokenizer_.get("model").get("ignore_merges").as_flag() == true) {
      return {};
    }
    if (file_.has_replaced_spaces) {
      return file_.has_prefix_space
          ? std::vector<std::string>()
          : std::vector<std::string>{"GemmaTokenizer"};
    }
    if (parts.empty() && !file_.has_nfc) {
      return {"GPT2Tokenizer", "RobertaTokenizer"};
    }
    const bool has_single_digits = regex.find("{1,3}") == std::string::npos;
    return !parts.empty() && file_.has_nfc && has_single_digits
        ? std::vector<std::string>{"Qwen2Tokenizer"}
        : std::vector<std::string>();
  }

  void check_class() const {
    if (is_generic_class()) {
      return;
    }
    const auto fitting = fitting_classes();
    if (std::count(fitting.begin(), fitting.end(), class_name()) == 0) {
      auto expected =
          std::string("the tokenizer_class PreTrainedTokenizerFast");
      for (const auto& name : fitting) {
        expected += " or " + name;
      }
      refuse(expected, config_.get("tokenizer_class").shown(60));
    }
  }

  void check_switches() const {
    const auto prefix = config_.get("add_prefix_space").as_flag();
    if (prefix && *prefix != file_.has_prefix_space) {
      refuse(
          format_text("add_prefix_space = {}", file_.has_prefix_space),
          config_.get("add_prefix_space").shown(60));
    }
    if (config_.get("split_special_tokens").as_flag() == true) {
      refuse("split_special_tokens = false", "true");
    }
  }

  /// Returns the text of a token: the value itself, or its "content".
  static std::optional<std::string> text_of(const Json& token) {
    const auto text = token.as_text();
    return text ? text : token.get("content").as_text();
  }

  /// Returns the number of a token, or none if tokenizer.json lacks it.
  std::optional<int64_t> id_of(const std::string& text) const {
    const auto* const token = find_added(text);
    return token != nullptr
        ? token->get("id").as_integer()
        : tokenizer_.get("model").get("vocab").get(text).as_integer();
  }

  const Json* find_added(const std::string& text) const {
    const auto& added = tokenizer_.get("added_tokens").elements();
    const auto found =
        std::find_if(added.begin(), added.end(), [&](const Json& token) {
          return token.get("content").as_text() == text;
        });
    return found == added.end() ? nullptr : &*found;
  }

  /// Returns the number of a named token that is put around texts.
  std::vector<int64_t> ids_of(const char* name, const char* otherwise) const {
    const auto& token = fields_.get(name);
    if (fields_.contains(name) && token.is_null()) {
      return {}; // transformers then puts none
    }
    const auto text = text_of(token).value_or(otherwise);
    const auto id = id_of(text);
    if (!id) {
      refuse(format_text("a token as \"{}\"", name), token.shown(60));
    }
    return {*id};
  }

  /// Any value of a switch, also false, replaces the post_processor.
  void check_surrounding() const {
    const bool has_switch =
        config_.contains("add_bos_token") || config_.contains("add_eos_token");
    const auto is_set = [&](const char* name) {
      return config_.get(name).as_flag().value_or(false);
    };
    std::vector<int64_t> before;
    std::vector<int64_t> after;
    if (has_switch) {
      before = is_set("add_bos_token") ? ids_of("bos_token", "") : before;
      after = is_set("add_eos_token") ? ids_of("eos_token", "") : after;
    } else if (class_name() == "RobertaTokenizer") {
      before = ids_of("cls_token", "<s>");
      after = ids_of("sep_token", "</s>");
    } else {
      return;
    }
    if (before != file_.before || after != file_.after) {
      refuse(
          format_text(
              "the tokens [{}] before texts and [{}] behind them",
              fmt::join(file_.before, ", "),
              fmt::join(file_.after, ", ")),
          format_text(
              "[{}] and [{}] (by add_bos_token, add_eos_token and "
              "tokenizer_class)",
              fmt::join(before, ", "),
              fmt::join(after, ", ")));
    }
  }

  void check_tokens() const {
    for (const auto& [name, token] : fields_.fields()) {
      const bool is_list =
          name == "additional_special_tokens" || name == "extra_special_tokens";
      if (ends_with(name, "_token") && text_of(token)) {
        check_token(name.c_str(), token); // others are switches
      } else if (is_list || name == kDecoder) {
        for (const auto& one : token.elements()) {
          check_token(name.c_str(), one);
        }
        for (const auto& [key, one] : token.fields()) {
          check_token(name.c_str(), one);
        }
      }
    }
    if (is_generic_class() || !config_.contains(kDecoder)) {
      return;
    }
    for (const auto& token : tokenizer_.get("added_tokens").elements()) {
      if (!is_stated(token.get("content").as_text().value_or(""))) {
        refuse(
            format_text(
                "the token {} in \"{}\"",
                token.get("content").shown(60),
                kDecoder),
            "none");
      }
    }
  }

  bool is_stated(const std::string& text) const {
    const auto is_this = [&](const Json& token) {
      return text_of(token) == text;
    };
    const auto& stated = config_.get(kDecoder).fields();
    return std::any_of(
               stated.begin(),
               stated.end(),
               [&](const auto& field) { return is_this(field.second); }) ||
        std::any_of(
               fields_.fields().begin(),
               fields_.fields().end(),
               [&](const auto& field) {
                 const auto& list = field.second.elements();
                 return std::any_of(list.begin(), list.end(), is_this) ||
                     (ends_with(field.first, "_token") &&
                      is_this(field.second));
               });
  }

  /// A token that is none of "added_tokens" would become one.
  void check_token(const char* field, const Json& token) const {
    const auto text = text_of(token);
    if (!text) {
      refuse(format_text("tokens in \"{}\"", field), token.shown(60));
    }
    if (text->empty()) {
      return;
    }
    const auto* const added = find_added(*text);
    if (added == nullptr) {
      refuse(
          format_text("one of the added_tokens as \"{}\"", field),
          token.shown(60));
    }
    for (const auto* name : {"lstrip", "rstrip", "single_word", "normalized"}) {
      const auto stated = token.get(name).as_flag();
      const auto in_file = added->get(name).as_flag().value_or(false);
      const bool matters = name == std::string_view("normalized")
          ? file_.has_nfc || file_.has_replaced_spaces
          : stated == true;
      if (stated && *stated != in_file && matters) {
        refuse(
            format_text("{} = {} of the token in \"{}\"", name, in_file, field),
            token.shown(200));
      }
    }
  }

  const std::string& tokenizer_path_;
  const Json& tokenizer_;
  const TokenizerFile& file_;
  std::string path_;
  /// tokenizer_config.json alone, and with the tokens of an older file.
  Json config_;
  Json fields_;
};

} // namespace

void check_tokenizer_config(
    const std::string& path,
    const Json& tokenizer,
    const TokenizerFile& file) {
  ConfigChecker(path, tokenizer, file).check();
}

} // namespace torch_attention::tools
