#include <tools/text/tokenizer_config.h>

#include <auto_tokenizer.h>
#include <format_text.h>
#include <tools/text/config_tokens.h>
#include <tools/text/tokenizer_options.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::tools {

namespace {

/// Compares the options of a folder's tokenizer with its tokenizer.json.
class ConfigChecker {
 public:
  ConfigChecker(const TokenizerOptions& options, const TokenizerFile& file)
      : options_(options), file_(file) {}

  void check() const {
    check_class();
    check_switches();
    check_surrounding();
  }

 private:
  /// Returns the classes that build such a tokenizer themselves.
  std::vector<std::string> fitting_classes() const {
    const auto& splits = options_.tokenizer.get("pre_tokenizer");
    const auto& parts = splits.get("pretokenizers").elements();
    const auto regex = parts.empty()
        ? std::string()
        : parts[0].get("pattern").get("Regex").as_text().value_or("");
    if (options_.tokenizer.get("model").get("ignore_merges").as_flag() ==
        true) {
      return {};
    }
    if (file_.normalizer.has_replaced_spaces) {
      return file_.normalizer.has_prefix_space
          ? std::vector<std::string>()
          : std::vector<std::string>{"GemmaTokenizer"};
    }
    if (parts.empty() && !file_.normalizer.has_nfc) {
      return {"GPT2Tokenizer", "CodeGenTokenizer", "RobertaTokenizer"};
    }
    const bool has_single_digits = regex.find("{1,3}") == std::string::npos;
    return !parts.empty() && file_.normalizer.has_nfc && has_single_digits
        ? std::vector<std::string>{"Qwen2Tokenizer"}
        : std::vector<std::string>();
  }

  void check_class() const {
    if (options_.is_generic()) {
      return;
    }
    const auto fitting = fitting_classes();
    if (std::count(fitting.begin(), fitting.end(), options_.tokenizer_class) ==
        0) {
      auto expected =
          std::string("the tokenizer_class PreTrainedTokenizerFast");
      for (const auto& name : fitting) {
        expected += " or " + name;
      }
      options_.refuse(
          expected,
          format_text(
              "\"{}\", by it and the model_type of config.json",
              options_.tokenizer_class));
    }
  }

  void check_switches() const {
    const auto prefix = options_.config.get("add_prefix_space").as_flag();
    // Of generic classes it concerns the part ByteLevel alone.
    const bool is_ignored =
        options_.is_generic() && file_.normalizer.has_replaced_spaces;
    if (prefix && *prefix != file_.normalizer.has_prefix_space && !is_ignored) {
      options_.refuse(
          format_text(
              "add_prefix_space = {}", file_.normalizer.has_prefix_space),
          options_.config.get("add_prefix_space").shown(60));
    }
    for (const auto* name : {"split_special_tokens", "fix_mistral_regex"}) {
      if (options_.config.get(name).as_flag() == true) {
        options_.refuse(format_text("{} = false", name), "true");
      }
    }
  }

  /// Returns the number of a named token that is put around texts.
  int64_t named_id(const char* name, const char* otherwise) const {
    const auto& token = options_.fields.get(name);
    const auto text = TokenizerOptions::text_of(token).value_or(otherwise);
    const auto id = options_.id_of(text);
    if (!id || (options_.fields.contains(name) && token.is_null())) {
      options_.refuse(format_text("a token as \"{}\"", name), token.shown(60));
    }
    return *id;
  }

  /// This class alone puts tokens around texts whatever tokenizer.json says.
  void check_surrounding() const {
    if (options_.tokenizer_class != "RobertaTokenizer") {
      return;
    }
    const std::vector<int64_t> before = {named_id("cls_token", "<s>")};
    const std::vector<int64_t> after = {named_id("sep_token", "</s>")};
    if (before != file_.around.before || after != file_.around.after) {
      options_.refuse(
          format_text(
              "the tokens [{}] before texts and [{}] behind them",
              fmt::join(file_.around.before, ", "),
              fmt::join(file_.around.after, ", ")),
          format_text(
              "[{}] and [{}], by the class {}",
              fmt::join(before, ", "),
              fmt::join(after, ", "),
              options_.tokenizer_class));
    }
  }

  const TokenizerOptions& options_;
  const TokenizerFile& file_;
};

} // namespace

void read_tokenizer_config(
    const std::string& path,
    const Json& tokenizer,
    TokenizerFile& file) {
  const TokenizerOptions options(path, tokenizer, file);
  ConfigChecker(options, file).check();
  check_config_tokens(options, file);
  for (auto& text : default_texts(options)) {
    file.refused_texts.push_back(std::move(text));
  }
  file.cuts_left =
      auto_tokenizer_cuts_left(options.folder, options.config, tokenizer);
}

} // namespace torch_attention::tools
