#include <tools/text/composed.h>

#include <check.h>
#include <escape.h>

#include <c10/util/Exception.h>

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

namespace torch_attention::tools {

std::string composed(const std::string& text) {
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> result(
      utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str())),
      std::free);
  TORCH_ATTENTION_CHECK(
      result != nullptr,
      "expected a text in UTF-8, but got \"{}\"",
      escaped(text));
  return reinterpret_cast<const char*>(result.get());
}

bool is_kept_when_composed(const std::string& token, const std::string& text) {
  std::string joined;
  for (size_t begin = 0;;) {
    const auto end = text.find(token, begin);
    const auto part = composed(text.substr(begin, end - begin));
    if (part.find(token) != std::string::npos) {
      return false;
    }
    joined += part;
    if (end == std::string::npos) {
      return joined == composed(text);
    }
    joined += token;
    begin = end + token.size();
  }
}

} // namespace torch_attention::tools
