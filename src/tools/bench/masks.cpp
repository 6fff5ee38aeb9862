#include <tools/bench/masks.h>

#include <format_text.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace torch_attention::tools {

namespace {

using functional::ScaledDotProductAttentionFuncOptions;

struct Masked {
  Work work;
  torch::ScalarType dtype = torch::kFloat;

  std::string name() const {
    return format_text(
        "mask {} B{} H{} T{} D{} {}{}",
        work.window ? format_text("window {}", *work.window) : "causal",
        work.B,
        work.H,
        work.T,
        work.D,
        torch::toString(dtype),
        work.backward ? " forward+backward" : "");
  }
};

std::vector<Candidate> candidates_of(const Masked& x) {
  auto data = draw_attention(x.work);
  for (auto* tensor : {&data.query, &data.key, &data.value, &data.cotangent}) {
    *tensor = tensor->defined() ? tensor->to(x.dtype) : *tensor;
  }
  const auto hidden = additive_mask(x.work.T, x.work.window).isinf();
  const auto mask_of = [&](double number) {
    return at::zeros(hidden.sizes(), x.dtype).masked_fill_(hidden, number);
  };
  const auto with_bias = [&](double number) {
    return ScaledDotProductAttentionFuncOptions().bias(mask_of(number));
  };
  auto option = ScaledDotProductAttentionFuncOptions().causal(true);
  if (x.work.window) {
    option.window(*x.work.window);
  }
  constexpr auto kInfinity = std::numeric_limits<double>::infinity();
  SdpaOptions theirs;
  theirs.causal = !x.work.window;
  theirs.mask = x.work.window ? mask_of(-kInfinity) : torch::Tensor();
  std::vector<Candidate> candidates{
      our_attention("ours, by the option", data, option),
      our_attention(
          "ours, bool mask",
          data,
          ScaledDotProductAttentionFuncOptions().mask(hidden)),
      our_attention("ours, 0 and -inf", data, with_bias(-kInfinity)),
      our_attention("ours, 0 and -1e9", data, with_bias(-1e9)),
      sdpa_attention("SDPA", data, theirs)};
  for (auto& candidate : candidates) {
    // Half precision is rounded by LibTorch's kernel on the way, too.
    candidate.allowed_difference =
        x.dtype == torch::kFloat ? candidate.allowed_difference : 0.03;
  }
  // Computes something else, to show what hidden keys save.
  auto all_keys = our_attention(
      "ours, all keys", data, ScaledDotProductAttentionFuncOptions());
  all_keys.allowed_difference = kInfinity;
  candidates.push_back(std::move(all_keys));
  return candidates;
}

Work work_of(
    int64_t B,
    int64_t H,
    int64_t T,
    std::optional<int64_t> window,
    bool backward) {
  Work work;
  work.B = B;
  work.H = H;
  work.T = T;
  work.D = 64;
  work.window = window;
  work.backward = backward;
  return work;
}

} // namespace

std::vector<Case> mask_cases() {
  constexpr int64_t kWindow = 256;
  std::vector<Case> cases;
  for (const auto& work :
       {work_of(4, 12, 1024, std::nullopt, false),
        work_of(4, 12, 1024, std::nullopt, true),
        work_of(1, 8, 8192, kWindow, false),
        work_of(1, 8, 4096, kWindow, true)}) {
    for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
      const Masked x{work, dtype};
      auto result =
          drawn_case(x.name(), work, Bound::kProducts, work.flops(), [x] {
            return candidates_of(x);
          });
      result.recording = work.backward ? Recording::kGraph : Recording::kNone;
      cases.push_back(std::move(result));
    }
  }
  return cases;
}

} // namespace torch_attention::tools
