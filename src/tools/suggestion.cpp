#include <tools/suggestion.h>

#include <tools/verify.h>

#include <format_text.h>

#include <cstdint>
#include <vector>

namespace torch_attention::tools {

namespace {

bool agrees(const VerificationCase& verification_case) {
  return verify(verification_case, torch::kCPU, Kernel::kReference).passed();
}

/// Returns the possible numbers of heads, starting with the given one.
std::vector<int64_t> possible_heads(const ModuleConfig& config) {
  std::vector<int64_t> heads = {config.num_heads};
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
