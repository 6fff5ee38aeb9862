#pragma once

#include <torch_attention/models/generate.h>

#include <iosfwd>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// The options of `generate`.
struct GenerateArguments {
  /// A folder that `save_pretrained` wrote.
  std::string folder;
  /// Texts to continue, and tokens to continue, as "1,2,3". Texts come first.
  std::vector<std::string> prompts;
  std::vector<std::string> ids;
  std::string dtype = "float32";
  std::string device = "cpu";
  /// Continue beyond the tokens that end a text.
  bool ignores_stop = false;
  /// Print text even if all prompts are tokens.
  bool as_text = false;
  /// Print a line of JSON for each prompt.
  bool as_json = false;
  models::GenerateOptions options;
};

/// Continues all prompts at once, and prints what follows them: as text, or as
/// numbers if no prompt is a text, tokens are not bytes, and `as_text` is not
/// set. A single one is printed as it grows. Prints the speed to `log`.
///
/// Throws c10::Error if there is no prompt, and as `open_tokens` and
/// `models::generate` do.
void generate_texts(
    GenerateArguments arguments,
    std::ostream& out,
    std::ostream& log);

} // namespace torch_attention::tools
