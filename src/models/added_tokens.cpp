#include <models/added_tokens.h>

#include <affixes.h>
#include <auto_tokenizer.h>
#include <check.h>
#include <models/json_fields.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <system_error>
#include <utility>

namespace torch_attention::models::detail {

namespace {

/// A file's object, for messages with its path.
struct File {
  std::string path;
  Json fields;
};

/// The name of a token, and what it is if the files do not say so: in BERT's
/// class, and in MPNet's.
struct TokenName {
  const char* field;
  const char* in_bert;
  const char* in_mpnet;

  std::string otherwise(const std::string& tokenizer_class) const {
    return tokenizer_class == kGenericTokenizer ? ""
        : tokenizer_class == "MPNetTokenizer"   ? in_mpnet
                                                : in_bert;
  }
};

/// In the order of transformers.
constexpr std::array<TokenName, 7> kNames{
    {{"bos_token", "", "<s>"},
     {"eos_token", "", "</s>"},
     {"unk_token", "[UNK]", "[UNK]"},
     {"sep_token", "[SEP]", "</s>"},
     {"pad_token", "[PAD]", "<pad>"},
     {"cls_token", "[CLS]", "<s>"},
     {"mask_token", "[MASK]", "<mask>"}}};

/// Returns the text of a token, which is a text or an object with its
/// "content".
std::string text_of(const Json& token, bool is_special, const File& file) {
  if (const auto text = token.as_text()) {
    return *text;
  }
  TORCH_ATTENTION_CHECK(
      token.is_object(),
      "expected a token in \"{}\", but got {}",
      file.path,
      token.shown(60));
  auto text = json_field(token, "content", "", file.path);
  TORCH_ATTENTION_CHECK(
      !text.empty(),
      "expected added tokens with a content in \"{}\"",
      file.path);
  const auto special = json_field(token, "special", is_special, file.path);
  TORCH_ATTENTION_CHECK(
      !json_field(token, "normalized", !special, file.path) &&
          !json_field(token, "single_word", false, file.path),
      "expected added tokens that are found as they stand (normalized and "
      "single_word = false) in \"{}\", but \"{}\" is not",
      file.path,
      text);
  return text;
}

/// Tokens by the numbers that files state.
using Numbered = std::map<int64_t, std::string>;

Numbered read_decoder(const File& config) {
  Numbered tokens;
  const auto& decoder = config.fields.get("added_tokens_decoder");
  for (const auto& [key, token] : decoder.fields()) {
    TORCH_ATTENTION_CHECK(
        token.is_object(),
        "expected objects in \"added_tokens_decoder\" of \"{}\", but got {}",
        config.path,
        token.shown(60));
    int64_t id = -1;
    const auto* end = key.data() + key.size();
    const auto read = std::from_chars(key.data(), end, id);
    TORCH_ATTENTION_CHECK(
        read.ec == std::errc() && read.ptr == end,
        "expected numbers in \"added_tokens_decoder\" of \"{}\", but got "
        "\"{}\"",
        config.path,
        key);
    tokens[id] = text_of(token, /*is_special=*/false, config);
  }
  return tokens;
}

Numbered read_listed(const Json& listed, const File& tokenizer) {
  Numbered tokens;
  for (const auto& token : listed.elements()) {
    const auto id = json_field(token, "id", int64_t{-1}, tokenizer.path);
    tokens[id] = text_of(token, /*is_special=*/false, tokenizer);
  }
  return tokens;
}

/// Reads `added_tokens.json`, whose tokens are found as they stand only if they
/// are special, or `tokens` has them already.
void read_older(
    const std::string& path,
    const std::vector<std::string>& specials,
    Numbered& tokens) {
  const auto file = read_json_if_there(path);
  for (const auto& [text, value] : file.fields()) {
    const auto id = json_field(file, text, int64_t{-1}, path);
    const auto found = tokens.find(id);
    TORCH_ATTENTION_CHECK(
        std::count(specials.begin(), specials.end(), text) > 0 ||
            (found != tokens.end() && found->second == text),
        "expected tokens in \"{}\" that are special ones too, but \"{}\" "
        "is none, and would be found in other forms of it",
        path,
        text);
    tokens.emplace(id, text);
  }
}

std::vector<std::string> texts_of(
    const std::vector<File>& files,
    std::initializer_list<const char*> fields) {
  std::vector<std::string> texts;
  for (const auto& file : files) {
    for (const auto* field : fields) {
      const auto& found = file.fields.get(field);
      TORCH_ATTENTION_CHECK(
          found.is_null() || found.is_list(),
          "expected a list as \"{}\" of \"{}\", but got {}",
          field,
          file.path,
          found.shown(60));
      for (const auto& token : found.elements()) {
        texts.push_back(text_of(token, /*is_special=*/true, file));
      }
    }
  }
  return texts;
}

bool is_named(const std::string& field) {
  return std::any_of(kNames.begin(), kNames.end(), [&](const TokenName& name) {
    return name.field == field;
  });
}

/// Returns the token with this name; the last file that has it counts. Null is
/// no token.
std::string named(
    const std::vector<File>& files,
    const std::string& field,
    std::string text) {
  for (const auto& file : files) {
    if (file.fields.contains(field)) {
      const auto& token = file.fields.get(field);
      text = token.is_null() ? "" : text_of(token, /*is_special=*/true, file);
    }
  }
  return text;
}

/// Returns the tokens that fields name: those of kNames in its order, which may
/// be empty, then others.
std::vector<AddedToken> specials_of(
    const std::vector<File>& files,
    const std::string& tokenizer_class) {
  std::vector<AddedToken> specials;
  for (const auto& name : kNames) {
    specials.push_back(
        {named(files, name.field, name.otherwise(tokenizer_class))});
  }
  for (const auto& file : files) {
    for (const auto& [field, token] : file.fields.fields()) {
      // Others, such as add_bos_token, are switches.
      const bool is_token = token.is_text() || token.is_object();
      if (is_token && ends_with(field, "_token") && !is_named(field)) {
        specials.push_back(
            {text_of(token, /*is_special=*/true, file), std::nullopt, field});
      }
    }
  }
  for (auto& text :
       texts_of(files, {"extra_special_tokens", "additional_special_tokens"})) {
    specials.push_back({std::move(text)});
  }
  return specials;
}

} // namespace

AddedTokens::AddedTokens(
    const std::string& folder,
    Json config,
    const Json& listed,
    const std::string& tokenizer_class) {
  const bool has_decoder = config.contains("added_tokens_decoder");
  std::vector<File> files{
      {folder + "/tokenizer_config.json", std::move(config)}};
  if (!has_decoder) {
    const auto path = folder + "/special_tokens_map.json";
    files.push_back({path, read_json_if_there(path)});
  }
  auto specials = specials_of(files, tokenizer_class);
  unknown = specials[2].text;
  end = specials[3].text;
  begin = specials[5].text;
  names_begin = std::any_of(files.begin(), files.end(), [](const File& file) {
    return file.fields.contains("cls_token");
  });

  const File tokenizer{folder + "/tokenizer.json", Json()};
  const auto in_tokenizer = read_listed(listed, tokenizer);
  auto numbered = has_decoder ? read_decoder(files.front()) : in_tokenizer;
  if (!has_decoder) {
    std::vector<std::string> texts;
    for (const auto& special : specials) {
      texts.push_back(special.text);
    }
    read_older(folder + "/added_tokens.json", texts, numbered);
  }
  const auto has = [&](const std::string& text) {
    return std::any_of(all.begin(), all.end(), [&](const AddedToken& token) {
      return token.text == text;
    });
  };
  const auto add = [&](AddedToken token) {
    if (!has(token.text) && !token.text.empty()) {
      all.push_back(std::move(token));
    }
  };
  for (const auto& [id, text] : numbered) {
    add({text, id});
  }
  for (auto& special : specials) {
    add(std::move(special));
  }
  for (const auto& [id, text] : in_tokenizer) {
    TORCH_ATTENTION_CHECK(
        has(text),
        "expected one tokenizer, but \"{}\" adds the token \"{}\", which "
        "\"added_tokens_decoder\" of \"{}\" lacks",
        tokenizer.path,
        text,
        files.front().path);
  }
}

} // namespace torch_attention::models::detail
