#include <tools/text/post_processor.h>

#include <string>

namespace torch_attention::tools {

namespace {

/// Appends numbers. Returns whether they are such.
bool append_numbers(const Json::List& ids, std::vector<int64_t>& numbers) {
  for (const auto& id : ids) {
    const auto number = id.as_integer();
    if (!number) {
      return false;
    }
    numbers.push_back(*number);
  }
  return true;
}

std::optional<TokensAround> read_template(const Json& part) {
  TokensAround around;
  auto* place = &around.before;
  int64_t texts = 0;
  for (const auto& piece : part.get("single").elements()) {
    if (piece.contains("Sequence")) {
      place = &around.after;
      ++texts;
      continue;
    }
    const auto name = piece.get("SpecialToken").get("id").as_text();
    const auto& ids =
        part.get("special_tokens").get(name.value_or("")).get("ids");
    if (!ids.is_list() || !append_numbers(ids.elements(), *place)) {
      return std::nullopt;
    }
  }
  return texts == 1 ? std::make_optional(around) : std::nullopt;
}

std::optional<TokensAround> read_roberta(const Json& part) {
  const auto& cls = part.get("cls").elements();
  const auto& sep = part.get("sep").elements();
  TokensAround around;
  const bool is_read = cls.size() == 2 && sep.size() == 2 &&
      append_numbers({cls[1]}, around.before) &&
      append_numbers({sep[1]}, around.after);
  return is_read ? std::make_optional(around) : std::nullopt;
}

std::optional<TokensAround> read_processors(const Json& parts) {
  TokensAround around;
  for (const auto& part : parts.elements()) {
    const auto one = read_post_processor(part);
    const bool has_tokens = !around.before.empty() || !around.after.empty();
    const bool adds = one && (!one->before.empty() || !one->after.empty());
    if (!one || (has_tokens && adds)) {
      return std::nullopt;
    }
    if (adds) {
      around = *one;
    }
  }
  return around;
}

} // namespace

std::optional<TokensAround> read_post_processor(const Json& part) {
  const auto type = part.get("type").as_text();
  if (part.is_null() || type == "ByteLevel") {
    return TokensAround();
  }
  return type == "Sequence"          ? read_processors(part.get("processors"))
      : type == "TemplateProcessing" ? read_template(part)
      : type == "RobertaProcessing"  ? read_roberta(part)
                                     : std::nullopt;
}

} // namespace torch_attention::tools
