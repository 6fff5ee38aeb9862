#include <cases/grouped.h>

#include <cases/candidates.h>
#include <cases/operators.h>
#include <format_text.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include <optional>
#include <string>
#include <utility>

namespace torch_attention::benchmarks {

namespace {

/// Returns T tokens that see S keys, those of their past and their own: H heads
/// of D numbers on G heads of keys.
Work grouped_work(
    int64_t B,
    int64_t H,
    int64_t G,
    int64_t T,
    int64_t S,
    int64_t D,
    torch::ScalarType dtype = torch::kFloat) {
  auto work = attention_work(B, H, T, D);
  work.G = G;
  work.S = S;
  work.dtype = dtype;
  return work;
}

/// Without causality there is a bias (1, H, T, S).
bool has_bias(const Work& work) {
  return !work.causal;
}

std::string grouped_name(const Work& work) {
  const auto* kind = work.backward ? "forward+backward"
      : has_bias(work)             ? "bias"
      : work.T == 1                ? "step"
      : work.T == work.S           ? "prompt"
                                   : "chunk";
  return format_text(
      "grouped {} B{} T{} S{} H{}/{} D{} {}",
      kind,
      work.B,
      work.T,
      work.S,
      work.H,
      work.G,
      work.D,
      torch::toString(work.dtype));
}

std::vector<Candidate> grouped_candidates(const Work& work) {
  auto data = draw_attention(work);
  if (work.backward) {
    data.cotangent = data.cotangent.contiguous();
  }
  functional::ScaledDotProductAttentionFuncOptions options;
  options.enable_gqa(work.G != work.H).causal(work.causal);
  SdpaOptions theirs;
  theirs.enable_gqa = work.G != work.H;
  theirs.causal = work.causal && work.T == work.S;
  if (has_bias(work)) {
    theirs.mask = at::randn({1, work.H, work.T, work.S}).to(work.dtype);
    options.bias(theirs.mask);
  } else if (work.T > 1 && work.T < work.S) {
    // LibTorch's own causal mask is of tokens without a past.
    theirs.mask =
        at::ones({work.T, work.S}, torch::kBool).tril_(work.S - work.T);
  }
  return {
      our_attention("ours", data, options),
      sdpa_attention("SDPA", data, theirs)};
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

std::vector<Candidate> step_candidates(const Step& step) {
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
  const auto candidate_of = [&](const char* name, auto run) {
    auto candidate = forward_candidate(name, std::move(run));
    if (is_half(step.dtype)) {
      candidate.allowed_difference = kAllowedInHalf;
    }
    return candidate;
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
          [=,
           keys = with_room(key, kSpareTokens),
           values = with_room(value, kSpareTokens)] {
            const auto heads = [&](const torch::nn::Linear& layer, int64_t n) {
              return heads_of(project(layer, x), n);
            };
            keys.narrow(2, step.S, 1).copy_(heads(attention->W_key, step.G));
            values.narrow(2, step.S, 1)
                .copy_(heads(attention->W_value, step.G));
            const auto context = sdpa(
                heads(attention->W_query, step.H),
                keys.narrow(2, 0, step.S + 1),
                values.narrow(2, 0, step.S + 1),
                std::nullopt,
                false);
            return project(attention->out_proj, joined(context));
          })};
}

std::vector<Work> grouped_works() {
  std::vector<Work> all{
      grouped_work(1, 32, 1, 1, 4096, 128),
      grouped_work(1, 71, 1, 1, 4096, 64),
      grouped_work(4, 16, 1, 1, 8192, 256, torch::kBFloat16),
      grouped_work(1, 32, 8, 1, 32768, 128, torch::kHalf),
      grouped_work(1, 32, 8, 1, 32768, 128, torch::kBFloat16),
      grouped_work(1, 32, 8, 1, 32768, 128)};
  for (const int64_t T : {2, 4, 8, 16}) {
    all.push_back(grouped_work(1, 32, 8, T, 4096, 128));
  }
  for (const int64_t T : {5, 8}) {
    all.push_back(grouped_work(1, 12, 12, T, 1024, 64));
  }
  for (const int64_t B : {1, 8}) {
    all.push_back(grouped_work(B, 12, 12, 512, 512, 64));
    all.back().causal = false;
  }
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    all.push_back(grouped_work(1, 32, 8, 2048, 2048, 128, dtype));
  }
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    for (const int64_t T : {8, 1024}) {
      all.push_back(grouped_work(1, 32, 8, T, 1024, 128, dtype));
      all.back().backward = true;
    }
  }
  return all;
}

} // namespace

std::vector<Case> grouped_cases() {
  std::vector<Case> cases;
  for (const auto& work : grouped_works()) {
    cases.push_back(drawn_case(
        grouped_name(work), work, [work] { return grouped_candidates(work); }));
    if (work.T == 1) {
      cases.back().bound = Bound::kReading;
      cases.back().own_amount = work.key_bytes();
    }
  }
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    for (const auto& step :
         {Step{2048, 16, 16, 2048, dtype}, Step{4096, 32, 8, 4096, dtype}}) {
      cases.push_back(drawn_case(
          step.name(), Work(), [step] { return step_candidates(step); }));
      cases.back().bound = Bound::kReading;
      cases.back().own_amount = step.bytes();
    }
  }
  return cases;
}

} // namespace torch_attention::benchmarks
