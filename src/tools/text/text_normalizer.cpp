#include <tools/text/text_normalizer.h>

#include <tools/text/composed.h>

namespace torch_attention::tools {

std::string TextNormalizer::apply(const std::string& text) const {
  if (text.empty()) {
    return text;
  }
  const std::string space = "▁";
  auto result = has_prefix_space ? space : "";
  for (const auto letter : has_nfc ? composed(text) : text) {
    const bool is_replaced = letter == ' ' && has_replaced_spaces;
    result += is_replaced ? space : std::string(1, letter);
  }
  return result;
}

} // namespace torch_attention::tools
