#include <weights/pretrained/verb_arguments.h>

#include <format_text.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <locale>
#include <sstream>

namespace torch_attention::weights::pretrained {

/// Users never see this error, since a test runs all steps of models.json.
void throw_unknown(const char* verb, const std::string& argument) {
  C10_THROW_ERROR(
      Error,
      format_text(
          "models.json: \"{}\" does not take \"{}\"; this is a mistake in the "
          "library",
          verb,
          argument));
}

std::optional<std::string> text_after(
    const std::string& argument,
    const std::string& word) {
  return starts_with(argument, word)
      ? std::optional(argument.substr(word.size()))
      : std::nullopt;
}

double number_of(const std::string& text) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  double number = 0;
  stream >> number;
  TORCH_INTERNAL_ASSERT(
      stream && stream.eof(), "models.json: \"", text, "\" is no number");
  return number;
}

std::optional<double> number_after(
    const std::string& argument,
    const std::string& word) {
  const auto text = text_after(argument, word);
  return text ? std::optional(number_of(*text)) : std::nullopt;
}

} // namespace torch_attention::weights::pretrained
