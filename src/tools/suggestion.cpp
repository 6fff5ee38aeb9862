#include <tools/suggestion.h>

#include <tools/verify.h>

#include <check.h>
#include <format_text.h>

#include <cstdint>
#include <vector>

namespace torch_attention::tools {

namespace {

bool agrees(const VerificationCase& verification_case) {
  return verify(verification_case, torch::kCPU, Kernel::kReference).passed();
}

/// Returns the possible numbers of heads, starting with the given one, if any.
std::vector<int64_t> possible_heads(const ModuleConfig& config) {
  std::vector<int64_t> heads;
  if (config.num_heads > 0) {
    heads.push_back(config.num_heads);
  }
  if (config.class_name == "MultiHeadAttention") {
    for (int64_t n = 1; n <= config.d_out; ++n) {
      if (config.d_out % n == 0 && n != config.num_heads) {
        heads.push_back(n);
      }
    }
  }
  return heads;
}

std::string text_of(const ModuleConfig& config, const ModuleConfig& given) {
  std::string text = config.causal ? "" : " --unmasked";
  if (config.class_name == "MultiHeadAttention") {
    text = format_text(" --num-heads {}", config.num_heads) + text;
  }
  const std::string without =
      config.causal && !given.causal ? " without --unmasked" : "";
  return text + without;
}

} // namespace

std::string find_num_heads(VerificationCase& verification_case) {
  auto& num_heads = verification_case.config.num_heads;
  if (num_heads > 0) {
    return "";
  }
  std::vector<int64_t> found;
  for (const auto possible : possible_heads(verification_case.config)) {
    num_heads = possible;
    if (agrees(verification_case)) {
      found.push_back(possible);
    }
    num_heads = 0;
  }
  TORCH_ATTENTION_CHECK(
      found.size() < 2,
      "several numbers of heads agree with the archive on this input: {}. "
      "Give one with --num-heads, or more --tokens",
      fmt::join(found, ", "));
  num_heads = found.empty() ? 1 : found.front();
  return found.empty() ? ""
                       : format_text(
                             "The number of heads is {}: the only one with "
                             "which the archive agrees.",
                             num_heads);
}

std::string suggest_options(const VerificationCase& verification_case) {
  const auto& given = verification_case.config;
  if (verification_case.is_recorded || agrees(verification_case)) {
    return "";
  }
  const bool takes_mask = given.class_name.rfind("Self", 0) != 0;
  auto other = verification_case;
  for (const auto num_heads : possible_heads(given)) {
    for (const auto causal : {given.causal, !given.causal}) {
      other.config.num_heads = num_heads;
      other.config.causal = causal;
      if ((causal == given.causal || takes_mask) && agrees(other)) {
        return "The archive agrees with:" + text_of(other.config, given);
      }
    }
  }
  return takes_mask
      ? "The archive computes another function: it agrees with no "
        "number of heads, masked or not."
      : "The archive computes another function.";
}

} // namespace torch_attention::tools
