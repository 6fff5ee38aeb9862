#include <tools/bench/grouped.h>

#include <format_text.h>
#include <torch_attention/nn/functional/attention.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/utils.h>

#include <optional>
#include <string>

namespace torch_attention::tools {

namespace {

/// T tokens that see S keys, those of their past and their own: H heads of D
/// numbers on G heads of keys.
struct Grouped {
  int64_t B;
  int64_t H;
  int64_t G;
  int64_t T;
  int64_t S;
  int64_t D;
  torch::ScalarType dtype = torch::kFloat;
  /// Adds a bias (1, H, T, S) and lets each token see all keys.
  bool has_bias = false;

  std::string name() const {
    const auto* kind = has_bias ? "bias" : T == 1 ? "step" : "chunk";
    return format_text(
        "grouped {} B{} T{} S{} H{}/{} D{} {}",
        kind,
        B,
        T,
        S,
        H,
        G,
        D,
        torch::toString(dtype));
  }

  double flops() const {
    const auto pairs = has_bias ? T * S : T * S - T * (T - 1) / 2;
    return 4.0 * static_cast<double>(B * H * D * pairs);
  }

  double bytes() const {
    return 2.0 * static_cast<double>(B * G * S * D) *
        static_cast<double>(torch::elementSize(dtype));
  }
};

Candidate candidate_of(
    const std::string& name,
    const Grouped& x,
    std::function<torch::Tensor()> run) {
  // Keys in half precision are rounded by LibTorch's kernel on the way, too.
  constexpr double kAllowedInHalf = 0.03;
  Candidate candidate;
  candidate.name = name;
  candidate.run = std::move(run);
  if (x.dtype != torch::kFloat) {
    candidate.allowed_difference = kAllowedInHalf;
  }
  return candidate;
}

std::vector<Candidate> candidates_of(const Grouped& x) {
  at::manual_seed(kSeed);
  const auto draw = [&](int64_t heads, int64_t tokens) {
    return at::randn({x.B, heads, tokens, x.D}).to(x.dtype);
  };
  const auto query = draw(x.H, x.T);
  const auto key = draw(x.G, x.S);
  const auto value = draw(x.G, x.S);
  auto options =
      functional::ScaledDotProductAttentionFuncOptions().enable_gqa(x.G != x.H);
  std::optional<torch::Tensor> mask;
  if (x.has_bias) {
    mask = at::randn({1, x.H, x.T, x.S}).to(x.dtype);
    options.bias(*mask);
  } else {
    options.causal(true);
    if (x.T > 1) {
      // LibTorch's own causal mask is of tokens without a past.
      mask = at::ones({x.T, x.S}, torch::kBool).tril_(x.S - x.T);
    }
  }
  return {
      candidate_of(
          "ours",
          x,
          [=] {
            return functional::scaled_dot_product_attention(
                query, key, value, options);
          }),
      candidate_of("SDPA", x, [=, shares = x.G != x.H] {
        return at::scaled_dot_product_attention(
            query, key, value, mask, 0.0, false, std::nullopt, shares);
      })};
}

} // namespace

std::vector<Case> grouped_cases() {
  constexpr auto kHalf = torch::kBFloat16;
  std::vector<Grouped> all{
      {1, 32, 1, 1, 4096, 128},
      {1, 71, 1, 1, 4096, 64},
      {4, 16, 1, 1, 8192, 256, kHalf},
      {1, 32, 8, 1, 32768, 128, kHalf},
      {1, 32, 8, 1, 32768, 128}};
  for (const int64_t T : {2, 4, 8, 16}) {
    all.push_back({1, 32, 8, T, 4096, 128});
  }
  for (const int64_t T : {5, 8}) {
    all.push_back({1, 12, 12, T, 1024, 64});
  }
  for (const int64_t B : {1, 8}) {
    all.push_back({B, 12, 12, 512, 512, 64, torch::kFloat, true});
  }
  all.push_back({1, 32, 8, 2048, 2048, 128});
  all.push_back({1, 32, 8, 2048, 2048, 128, kHalf});
  std::vector<Case> cases;
  for (const auto& x : all) {
    Case result;
    result.name = x.name();
    result.work.B = x.B;
    result.work.T = x.T;
    result.work.S = x.S;
    result.work.H = x.H;
    result.work.D = x.D;
    result.bound = x.T == 1 ? Bound::kReading : Bound::kProducts;
    result.own_amount = x.T == 1 ? x.bytes() : x.flops();
    result.is_quick = false;
    result.make_candidates = [x](bool /*quick*/) { return candidates_of(x); };
    cases.push_back(std::move(result));
  }
  return cases;
}

} // namespace torch_attention::tools
