#include <tools/text/config_tokens.h>

#include <affixes.h>
#include <check.h>
#include <config_file.h>
#include <format_text.h>

#include <array>
#include <string_view>
#include <unordered_set>

namespace torch_attention::tools {

namespace {

/// A token that a class of transformers has if a folder does not name another.
struct DefaultToken {
  const char* tokenizer_class;
  const char* field;
  const char* text;
};

constexpr std::array kDefaultTokens{
    DefaultToken{"CodeGenTokenizer", "unk_token", "<|endoftext|>"},
    DefaultToken{"CodeGenTokenizer", "bos_token", "<|endoftext|>"},
    DefaultToken{"CodeGenTokenizer", "eos_token", "<|endoftext|>"},
    DefaultToken{"GPT2Tokenizer", "unk_token", "<|endoftext|>"},
    DefaultToken{"GPT2Tokenizer", "bos_token", "<|endoftext|>"},
    DefaultToken{"GPT2Tokenizer", "eos_token", "<|endoftext|>"},
    DefaultToken{"Qwen2Tokenizer", "unk_token", "<|endoftext|>"},
    DefaultToken{"Qwen2Tokenizer", "eos_token", "<|endoftext|>"},
    DefaultToken{"Qwen2Tokenizer", "pad_token", "<|endoftext|>"},
    DefaultToken{"RobertaTokenizer", "bos_token", "<s>"},
    DefaultToken{"RobertaTokenizer", "eos_token", "</s>"},
    DefaultToken{"RobertaTokenizer", "sep_token", "</s>"},
    DefaultToken{"RobertaTokenizer", "cls_token", "<s>"},
    DefaultToken{"RobertaTokenizer", "unk_token", "<unk>"},
    DefaultToken{"RobertaTokenizer", "pad_token", "<pad>"},
    DefaultToken{"RobertaTokenizer", "mask_token", "<mask>"},
    DefaultToken{"GemmaTokenizer", "unk_token", "<unk>"},
    DefaultToken{"GemmaTokenizer", "bos_token", "<bos>"},
    DefaultToken{"GemmaTokenizer", "eos_token", "<eos>"},
    DefaultToken{"GemmaTokenizer", "pad_token", "<pad>"},
    DefaultToken{"GemmaTokenizer", "mask_token", "<mask>"}};

/// Compares the tokens that files name with those of tokenizer.json.
class TokenChecker {
 public:
  TokenChecker(const TokenizerOptions& options, const TokenizerFile& file)
      : options_(options), file_(file) {}

  void check() const {
    check_named_tokens();
    check_older_tokens();
  }

 private:
  void check_named_tokens() const {
    for (const auto& [name, token] : options_.fields.fields()) {
      const bool is_list =
          name == "additional_special_tokens" || name == "extra_special_tokens";
      if (ends_with(name, "_token") && TokenizerOptions::text_of(token)) {
        check_token(name.c_str(), token); // others are switches
      } else if (is_list || name == TokenizerOptions::kDecoder) {
        for (const auto& one : token.elements()) {
          check_token(name.c_str(), one);
        }
        for (const auto& [key, one] : token.fields()) {
          check_token(name.c_str(), one);
        }
      }
    }
    if (options_.is_generic() ||
        !options_.config.contains(TokenizerOptions::kDecoder)) {
      return;
    }
    const auto stated = stated_texts();
    for (const auto& token :
         options_.tokenizer.get("added_tokens").elements()) {
      if (stated.count(token.get("content").as_text().value_or("")) == 0) {
        options_.refuse(
            format_text(
                "the token {} in \"{}\"",
                token.get("content").shown(60),
                TokenizerOptions::kDecoder),
            "none");
      }
    }
  }

  /// Returns the texts of the tokens that the files name.
  std::unordered_set<std::string> stated_texts() const {
    std::unordered_set<std::string> texts;
    const auto add = [&](const Json& token) {
      texts.insert(TokenizerOptions::text_of(token).value_or(""));
    };
    for (const auto& [id, token] :
         options_.config.get(TokenizerOptions::kDecoder).fields()) {
      add(token);
    }
    for (const auto& [name, token] : options_.fields.fields()) {
      for (const auto& one : token.elements()) {
        add(one);
      }
      if (ends_with(name, "_token")) {
        add(token);
      }
    }
    return texts;
  }

  /// A token that is none of "added_tokens" would become one.
  void check_token(const char* field, const Json& token) const {
    const auto text = TokenizerOptions::text_of(token);
    if (!text) {
      options_.refuse(format_text("tokens in \"{}\"", field), token.shown(60));
    }
    if (text->empty()) {
      return;
    }
    const auto* const added = options_.find_added(*text);
    if (added == nullptr) {
      options_.refuse(
          format_text("one of the added_tokens as \"{}\"", field),
          token.shown(60));
    }
    for (const auto* name : {"lstrip", "rstrip", "single_word", "normalized"}) {
      const auto stated = token.get(name).as_flag();
      const auto in_file = added->get(name).as_flag().value_or(false);
      const bool matters = name == std::string_view("normalized")
          ? file_.normalizer.has_nfc || file_.normalizer.has_replaced_spaces
          : stated == true;
      if (stated && *stated != in_file && matters) {
        options_.refuse(
            format_text("{} = {} of the token in \"{}\"", name, in_file, field),
            token.shown(200));
      }
    }
  }

  /// Tokens of an older file are added, too, if nothing replaces it.
  void check_older_tokens() const {
    const auto path = options_.folder + "/added_tokens.json";
    if (options_.config.contains(TokenizerOptions::kDecoder)) {
      return;
    }
    const auto tokens = read_config_if_there(path);
    for (const auto& [text, id] : tokens.fields()) {
      const auto* const added = options_.find_added(text);
      TORCH_ATTENTION_CHECK(
          added != nullptr && added->get("id") == id,
          "\"{}\": expected one of the added_tokens of \"{}\" with its number, "
          "but got \"{}\" with {}. Give tokens by --ids",
          path,
          options_.tokenizer_path,
          text,
          id.shown(60));
    }
  }

  const TokenizerOptions& options_;
  const TokenizerFile& file_;
};

} // namespace

void check_config_tokens(
    const TokenizerOptions& options,
    const TokenizerFile& file) {
  TokenChecker(options, file).check();
}

std::vector<std::string> default_texts(const TokenizerOptions& options) {
  std::vector<std::string> texts;
  for (const auto& token : kDefaultTokens) {
    if (token.tokenizer_class == options.tokenizer_class &&
        !options.fields.contains(token.field) &&
        options.find_added(token.text) == nullptr) {
      texts.emplace_back(token.text);
    }
  }
  return texts;
}

} // namespace torch_attention::tools
