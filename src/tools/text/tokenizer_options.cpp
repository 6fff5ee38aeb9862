#include <tools/text/tokenizer_options.h>

#include <auto_tokenizer.h>
#include <config_file.h>
#include <format_text.h>

#include <c10/util/Exception.h>

#include <filesystem>

namespace torch_attention::tools {

TokenizerOptions::TokenizerOptions(
    const std::string& path_,
    const Json& tokenizer_,
    const TokenizerFile& file)
    : tokenizer_path(path_),
      tokenizer(tokenizer_),
      folder(std::filesystem::absolute(path_).parent_path().string()),
      path(folder + "/tokenizer_config.json"),
      config(read_config_if_there(path)),
      fields(config),
      tokenizer_class(auto_tokenizer_class(
          folder,
          config,
          /*has_byte_level=*/!file.normalizer.has_replaced_spaces)) {
  for (const auto& token : tokenizer.get("added_tokens").elements()) {
    added.emplace(token.get("content").as_text().value_or(""), &token);
  }
  if (!config.contains(kDecoder)) {
    fields.update(read_config_if_there(folder + "/special_tokens_map.json"));
  }
}

bool TokenizerOptions::is_generic() const {
  return tokenizer_class.empty() || tokenizer_class == kGenericTokenizer;
}

std::optional<std::string> TokenizerOptions::text_of(const Json& token) {
  const auto text = token.as_text();
  return text ? text : token.get("content").as_text();
}

const Json* TokenizerOptions::find_added(const std::string& text) const {
  const auto found = added.find(text);
  return found == added.end() ? nullptr : found->second;
}

std::optional<int64_t> TokenizerOptions::id_of(const std::string& text) const {
  const auto* const token = find_added(text);
  return token != nullptr
      ? token->get("id").as_integer()
      : tokenizer.get("model").get("vocab").get(text).as_integer();
}

void TokenizerOptions::refuse(
    const std::string& expected,
    const std::string& got) const {
  C10_THROW_ERROR(
      Error,
      format_text(
          "\"{}\": expected {}, as in \"{}\", but got {}: transformers would "
          "give other tokens. Give tokens by --ids",
          path,
          expected,
          tokenizer_path,
          got));
}

} // namespace torch_attention::tools
