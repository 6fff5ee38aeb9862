#include <tools/bench/grouped.h>

#include <format_text.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>

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
  bool backward = false;

  std::string name() const {
    const auto* kind = backward ? "forward+backward"
        : has_bias              ? "bias"
        : T == 1                ? "step"
        : T == S                ? "prompt"
                                : "chunk";
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
    // as `Work` counts them
    const double products = backward ? 7 : 2;
    return 2 * products * static_cast<double>(B * H * D * pairs);
  }

  double bytes() const {
    return 2.0 * static_cast<double>(B * G * S * D) *
        static_cast<double>(torch::elementSize(dtype));
  }
};

Candidate allow_rounding(Candidate candidate, torch::ScalarType dtype) {
  // Keys in half precision are rounded by LibTorch's kernel on the way, too.
  constexpr double kAllowedInHalf = 0.03;
  if (dtype != torch::kFloat) {
    candidate.allowed_difference = kAllowedInHalf;
  }
  return candidate;
}

std::vector<Candidate> candidates_of(const Grouped& x) {
  const auto draw = [&](int64_t heads, int64_t tokens) {
    return at::randn({x.B, heads, tokens, x.D}).to(x.dtype);
  };
  AttentionData data;
  data.query = draw(x.H, x.T);
  data.key = draw(x.G, x.S);
  data.value = draw(x.G, x.S);
  if (x.backward) {
    data.cotangent = draw(x.H, x.T);
  }
  functional::ScaledDotProductAttentionFuncOptions options;
  options.enable_gqa(x.G != x.H).causal(!x.has_bias);
  SdpaOptions theirs;
  theirs.enable_gqa = x.G != x.H;
  theirs.causal = !x.has_bias && x.T == x.S;
  if (x.has_bias) {
    theirs.mask = at::randn({1, x.H, x.T, x.S}).to(x.dtype);
    options.bias(theirs.mask);
  } else if (x.T > 1 && x.T < x.S) {
    // LibTorch's own causal mask is of tokens without a past.
    theirs.mask = at::ones({x.T, x.S}, torch::kBool).tril_(x.S - x.T);
  }
  return {
      allow_rounding(our_attention("ours", data, options), x.dtype),
      allow_rounding(sdpa_attention("SDPA", data, theirs), x.dtype)};
}

/// A decode step of a whole module: C channels, heads of 128, on a past of S
/// tokens.
struct Step {
  int64_t C;
  int64_t H;
  int64_t G;
  int64_t S;
  torch::ScalarType dtype;

  std::string name() const {
    return format_text(
        "grouped module step B1 C{} S{} H{}/{} {}",
        C,
        S,
        H,
        G,
        torch::toString(dtype));
  }

  /// The bytes of the weights, keys and values.
  double bytes() const {
    const auto numbers = 2 * C * C + 2 * C * C / H * G + 2 * S * C / H * G;
    return static_cast<double>(numbers) *
        static_cast<double>(torch::elementSize(dtype));
  }
};

std::vector<Candidate> candidates_of(const Step& step) {
  constexpr int64_t kSpareTokens = 16;
  const auto D = step.C / step.H;
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(step.C, step.C, step.S + kSpareTokens, step.H)
          .num_kv_heads(step.G)
          .register_mask(false));
  attention->to(step.dtype);
  attention->eval();
  const auto past = [&] {
    return at::randn({1, step.G, step.S, D}).to(step.dtype);
  };
  const auto key = past();
  const auto value = past();
  const auto x = at::randn({1, 1, step.C}).to(step.dtype);
  const auto cache = std::make_shared<KVCache>(attention->make_cache(1));
  cache->append(key, value);
  const auto with_room = [&](const torch::Tensor& rows) {
    auto all = at::empty({1, step.G, step.S + kSpareTokens, D}, rows.options());
    all.narrow(2, 0, step.S).copy_(rows);
    return all;
  };
  const auto project = [](const torch::nn::Linear& layer,
                          const torch::Tensor& of) {
    return at::linear(of, layer->weight, layer->bias);
  };
  const auto candidate_of = [&](const char* name, auto run) {
    return allow_rounding(forward_candidate(name, std::move(run)), step.dtype);
  };
  return {
      candidate_of(
          "ours",
          [=]() mutable {
            cache->truncate(step.S);
            return attention->decode(x, *cache);
          }),
      candidate_of(
          "LibTorch's operators, preallocated cache",
          [=, keys = with_room(key), values = with_room(value)] {
            const auto heads = [&](const torch::nn::Linear& layer, int64_t n) {
              return project(layer, x).view({1, 1, n, D}).transpose(1, 2);
            };
            keys.narrow(2, step.S, 1).copy_(heads(attention->W_key, step.G));
            values.narrow(2, step.S, 1)
                .copy_(heads(attention->W_value, step.G));
            const auto context = at::scaled_dot_product_attention(
                heads(attention->W_query, step.H),
                keys.narrow(2, 0, step.S + 1),
                values.narrow(2, 0, step.S + 1),
                std::nullopt,
                0.0,
                false,
                std::nullopt,
                step.G != step.H);
            return project(
                attention->out_proj, context.transpose(1, 2).flatten(2));
          })};
}

} // namespace

std::vector<Case> grouped_cases() {
  std::vector<Grouped> all{
      {1, 32, 1, 1, 4096, 128},
      {1, 71, 1, 1, 4096, 64},
      {4, 16, 1, 1, 8192, 256, torch::kBFloat16},
      {1, 32, 8, 1, 32768, 128, torch::kHalf},
      {1, 32, 8, 1, 32768, 128, torch::kBFloat16},
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
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    all.push_back({1, 32, 8, 2048, 2048, 128, dtype});
  }
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    for (const int64_t T : {8, 1024}) {
      Grouped training{1, 32, 8, T, 1024, 128, dtype};
      training.backward = true;
      all.push_back(training);
    }
  }
  std::vector<Case> cases;
  cases.reserve(all.size());
  for (const auto& x : all) {
    const bool reads = x.T == 1;
    Work work;
    work.B = x.B;
    work.T = x.T;
    work.S = x.S;
    work.H = x.H;
    work.D = x.D;
    work.backward = x.backward;
    auto result = drawn_case(
        x.name(),
        work,
        reads ? Bound::kReading : Bound::kProducts,
        reads ? x.bytes() : x.flops(),
        [x] { return candidates_of(x); });
    if (x.backward) {
      result.recording = Recording::kGraph;
    }
    cases.push_back(std::move(result));
  }
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    for (const auto& step :
         {Step{2048, 16, 16, 2048, dtype}, Step{4096, 32, 8, 4096, dtype}}) {
      cases.push_back(drawn_case(
          step.name(), Work(), Bound::kReading, step.bytes(), [step] {
            return candidates_of(step);
          }));
    }
  }
  return cases;
}

} // namespace torch_attention::tools
