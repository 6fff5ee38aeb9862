// Compares models of changed configurations, which `generate changed` writes,
// with their known outputs, and prints a line of each:
//   changed_models FOLDER_OF_FOLDERS

#include <support/known_attention.h>

#include <ATen/ops/isnan.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <string>

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

/// Returns the message, without a backtrace, in one line.
std::string line_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  std::string text =
      ours == nullptr ? error.what() : ours->what_without_backtrace();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// Returns a word, a tab, and more of it: whether all layers of the model give
/// the outputs that are known of them.
std::string compared(const std::string& folder) {
  std::string refusals;
  double largest = 0;
  bool has_output = false;
  for (const auto& known : known_attentions(folder)) {
    torch::Tensor output;
    try {
      output = output_of(known, known.call());
    } catch (const std::exception& error) {
      refusals += c10::str(known.part, known.layer, ": ", line_of(error), "; ");
      continue;
    }
    has_output = true;
    const auto expected = known.get("output");
    if (output.sizes() != expected.sizes()) {
      return c10::str(
          "differs\t",
          known.part,
          known.layer,
          ": ",
          output.sizes(),
          ", not ",
          expected.sizes());
    }
    // NaN of both is equal.
    const auto known_nan = output.isnan().bitwise_and(expected.isnan());
    const auto largest_expected =
        expected.masked_fill(known_nan, 0).abs().max().item<double>();
    const auto difference = (output - expected)
                                .abs()
                                .masked_fill(known_nan, 0)
                                .max()
                                .item<double>() /
        (1 + largest_expected);
    if (!(difference < 3e-5)) {
      return c10::str(
          "differs\t", known.part, known.layer, ": by ", difference);
    }
    largest = std::max(largest, difference);
  }
  if (!has_output && refusals.empty()) {
    return "lost\tno known attention";
  }
  return has_output && refusals.empty() ? c10::str("equal\t", largest)
      : has_output                      ? "refused in part\t" + refusals
                                        : "refused\t" + refusals;
}

} // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: changed_models FOLDER_OF_FOLDERS\n";
    return 2;
  }
  const torch::NoGradGuard no_grad;
  const std::string root = arguments[1];
  for (const auto& name : files_in(root)) {
    std::string line;
    try {
      line = compared(root + "/" + name);
    } catch (const std::exception& error) {
      line = "lost\t" + line_of(error);
    }
    std::cout << "changed\t" << name << "\t" << line << std::endl;
  }
  return 0;
}
