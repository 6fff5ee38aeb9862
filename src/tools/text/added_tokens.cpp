#include <tools/text/added_tokens.h>

#include <check.h>

#include <cstdint>
#include <map>
#include <utility>

namespace torch_attention::tools {

namespace {

/// Numbers tokens in their order: by the vocabulary, or with the next number.
class TokenNumbers {
 public:
  explicit TokenNumbers(const Json& vocabulary) : vocabulary_(vocabulary) {}

  int64_t number(const std::string& token) {
    if (const auto known = vocabulary_.get(token).as_integer()) {
      return *known;
    }
    const auto next = vocabulary_.fields().size() + numbers_.size();
    return numbers_.try_emplace(token, static_cast<int64_t>(next))
        .first->second;
  }

 private:
  const Json& vocabulary_;
  std::map<std::string, int64_t> numbers_;
};

} // namespace

AddedTokens read_added_tokens(
    const Json& tokenizer,
    const TextNormalizer& normalizer,
    const std::string& path) {
  AddedTokens tokens;
  TokenNumbers numbers(tokenizer.get("model").get("vocab"));
  for (const auto& token : tokenizer.get("added_tokens").elements()) {
    const auto is_set = [&](const char* name) {
      return token.get(name).as_flag().value_or(false);
    };
    const auto content = token.get("content").as_text().value_or("");
    if (content.empty()) {
      continue; // never found in a text
    }
    const auto id = numbers.number(content);
    TORCH_ATTENTION_CHECK(
        token.get("id").as_integer() == id,
        "\"{}\": expected the number {} for the added token {}, which Python's "
        "tokenizers give it, but got {}",
        path,
        id,
        token.get("content").shown(60),
        token.get("id").shown(60));
    const auto searched =
        is_set("normalized") ? normalizer.apply(content) : content;
    (is_set("normalized") ? tokens.normalized : tokens.raw).add(searched, id);
    tokens.written.add(content, id);
    if (is_set("lstrip") || is_set("rstrip") || is_set("single_word")) {
      tokens.refused.push_back(searched);
    }
  }
  return tokens;
}

} // namespace torch_attention::tools
