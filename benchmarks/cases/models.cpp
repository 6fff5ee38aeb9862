#include <cases/models.h>

#include <cases/operators.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/functional/rotary.h>
#include <torch_attention/nn/modules/cross_attention.h>
#include <torch_attention/nn/modules/latent_attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace torch_attention::benchmarks {

namespace {

using AttentionFuncOptions = functional::ScaledDotProductAttentionFuncOptions;

constexpr const char* kOurName = "ours";
constexpr const char* kTheirName = "LibTorch's operators";

std::vector<Candidate> ours_and_theirs(
    std::function<torch::Tensor()> ours,
    std::function<torch::Tensor()> theirs) {
  return {
      forward_candidate(kOurName, std::move(ours)),
      forward_candidate(kTheirName, std::move(theirs))};
}

Case model_case(
    const std::string& name,
    const Work& work,
    double flops,
    std::function<std::vector<Candidate>()> make) {
  auto result = drawn_case("model " + name, work, std::move(make));
  result.own_amount = flops;
  return result;
}

/// FLOPs: a multiplication and an addition for each of so many.
double products(std::initializer_list<int64_t> sizes) {
  double flops = 2;
  for (const auto size : sizes) {
    flops *= static_cast<double>(size);
  }
  return flops;
}

/// An encoder's batch, of which a third is padding.
Case padded_case() {
  const auto work = attention_work(8, 12, 512, 64);
  return model_case(
      "padded batch B8 T512 H12 D64",
      work,
      products({2, work.H, work.D, work.T, work.B, 352}),
      [work] {
        const auto draw = [&] {
          return at::randn({work.B, work.H, work.T, work.D});
        };
        const auto query = draw();
        const auto key = draw();
        const auto value = draw();
        // 192, ..., 512: 352 on average.
        const auto lengths =
            at::linspace(192, 512, work.B, torch::kDouble).to(torch::kLong);
        const auto seen =
            at::arange(work.T).unsqueeze(0) < lengths.unsqueeze(1);
        const auto mask = seen.unsqueeze(1).unsqueeze(1);
        return ours_and_theirs(
            [=] {
              return functional::scaled_dot_product_attention(
                  query,
                  key,
                  value,
                  AttentionFuncOptions().key_lengths(lengths));
            },
            [=] { return sdpa(query, key, value, mask, false); });
      });
}

/// Packed tokens without padding, against a call for each sequence.
Case packed_case() {
  const auto work = attention_work(16, 12, 352, 64);
  return model_case(
      "packed sequences of 32 to 672 tokens, B16 H12 D64",
      work,
      // 403: the root of the mean square
      products({2, work.H, work.D, work.B, 403, 403}),
      [work] {
        const auto lengths =
            at::linspace(32, 672, work.B, torch::kDouble).to(torch::kLong);
        const auto starts =
            at::cat({at::zeros({1}, torch::kLong), lengths.cumsum(0)});
        const auto draw = [&] {
          const auto N = starts[-1].item<int64_t>();
          return at::randn({1, N, work.H, work.D}).transpose(1, 2);
        };
        const auto query = draw();
        const auto key = draw();
        const auto value = draw();
        return ours_and_theirs(
            [=] {
              return functional::scaled_dot_product_attention(
                  query, key, value, AttentionFuncOptions().cu_seqlens(starts));
            },
            [=] {
              std::vector<torch::Tensor> outputs;
              const auto* start = starts.const_data_ptr<int64_t>();
              for (int64_t b = 0; b < work.B; ++b) {
                const auto part = [&](const torch::Tensor& x) {
                  return x.slice(2, start[b], start[b + 1]);
                };
                outputs.push_back(sdpa(
                    part(query), part(key), part(value), std::nullopt, false));
              }
              return at::cat(outputs, 2);
            });
      });
}

/// A decoder's tokens and 30 seconds of sound, as in Whisper.
Case cross_case(int64_t T, bool cached) {
  constexpr int64_t B = 4;
  constexpr int64_t S = 1500;
  constexpr int64_t H = 8;
  constexpr int64_t C = 512;
  const auto of_tokens = products({2, B, T, C, C}) + products({2, B, T, S, C});
  const auto of_context = products({2, B, S, C, C});
  return model_case(
      cached ? "cross-attention step B4 S1500 H8 D64"
             : "cross-attention B4 T64 S1500 H8 D64",
      attention_work(B, H, T, C / H),
      of_tokens + (cached ? 0 : of_context),
      [=] {
        CrossAttention attention(
            CrossAttentionOptions(C, C, C, H).qkv_bias(true));
        attention->eval();
        const auto x = at::randn({B, T, C});
        const auto context = at::randn({B, S, C});
        const auto attend = [=](const torch::Tensor& key,
                                const torch::Tensor& value) {
          const auto query = heads_of(project(attention->W_query, x), H);
          return project(
              attention->out_proj,
              joined(sdpa(query, key, value, std::nullopt, false)));
        };
        const auto keys = [=] {
          return heads_of(project(attention->W_key, context), H);
        };
        const auto values = [=] {
          return heads_of(project(attention->W_value, context), H);
        };
        if (!cached) {
          return ours_and_theirs(
              [=]() mutable { return attention->forward(x, context); },
              [=] { return attend(keys(), values()); });
        }
        const auto cache =
            std::make_shared<KVCache>(attention->make_cache(context));
        return ours_and_theirs(
            [=]() mutable { return attention->decode(x, *cache); },
            [=, key = keys().contiguous(), value = values().contiguous()] {
              return attend(key, value);
            });
      });
}

/// Grouped heads of 256, as in Gemma.
Case wide_case() {
  const auto work = attention_work(1, 8, 2048, 256);
  return model_case(
      "grouped heads B1 T2048 H8/4 D256",
      work,
      products({work.H, work.D, work.T, work.T + 1}),
      [work] {
        const auto draw = [&](int64_t heads) {
          return at::randn({work.B, heads, work.T, work.D});
        };
        const auto query = draw(work.H);
        const auto key = draw(work.H / 2);
        const auto value = draw(work.H / 2);
        return ours_and_theirs(
            [=] {
              return functional::scaled_dot_product_attention(
                  query,
                  key,
                  value,
                  AttentionFuncOptions().causal(true).enable_gqa(true));
            },
            [=] { return sdpa(query, key, value, std::nullopt, true); });
      });
}

/// x (..., D) with halves of pairs rotated by tables (T, D).
torch::Tensor rotated(
    const torch::Tensor& x,
    const torch::Tensor& cos,
    const torch::Tensor& sin) {
  const auto half = x.size(-1) / 2;
  const auto turned = at::cat({-x.slice(-1, half), x.slice(-1, 0, half)}, -1);
  return x * cos + turned * sin;
}

/// A module with norms of queries and keys and rotary embedding, as in Qwen 3.
Case normed_case() {
  constexpr int64_t B = 1;
  constexpr int64_t T = 1024;
  constexpr int64_t C = 1024;
  constexpr int64_t H = 16;
  constexpr int64_t G = 8;
  constexpr int64_t D = 128;
  const auto projections = products({B, T, C, 2 * H + 2 * G, D});
  return model_case(
      "module with norms and rotary B1 T1024 C1024 H16/8 D128",
      attention_work(B, H, T, D),
      projections + products({B, H, D, T, T + 1}),
      [=] {
        MultiHeadAttention attention(MultiHeadAttentionOptions(C, C, T, H)
                                         .num_kv_heads(G)
                                         .head_dim(D)
                                         .out_bias(false)
                                         .qk_norm(HeadNormOptions())
                                         .rotary(RotaryOptions().theta(1e6))
                                         .register_mask(false));
        attention->eval();
        const auto x = at::randn({B, T, C});
        const auto frequencies =
            at::pow(1e6, -at::arange(0, D, 2, torch::kDouble) / D);
        const auto angles = at::cat(
            {at::arange(T, torch::kDouble).unsqueeze(1) * frequencies,
             at::arange(T, torch::kDouble).unsqueeze(1) * frequencies},
            -1);
        const auto cos = angles.cos().to(torch::kFloat);
        const auto sin = angles.sin().to(torch::kFloat);
        const auto normed = [](const torch::Tensor& heads,
                               const HeadNorm& norm) {
          return at::rms_norm(
              heads, {heads.size(-1)}, norm->weight, norm->options.eps());
        };
        return ours_and_theirs(
            [=]() mutable { return attention->forward(x); },
            [=] {
              const auto query = normed(
                  heads_of(project(attention->W_query, x), H),
                  attention->q_norm);
              const auto key = normed(
                  heads_of(project(attention->W_key, x), G), attention->k_norm);
              const auto value = heads_of(project(attention->W_value, x), G);
              return project(
                  attention->out_proj,
                  joined(sdpa(
                      rotated(query, cos, sin),
                      rotated(key, cos, sin),
                      value,
                      std::nullopt,
                      true)));
            });
      });
}

/// One token more with DeepSeek's latent vectors, sizes of its Lite model. The
/// other forms keys and values of all tokens in each step, as `transformers`.
Case latent_case() {
  constexpr int64_t C = 2048;
  constexpr int64_t H = 16;
  constexpr int64_t S = 2048;
  constexpr int64_t R = 512;
  constexpr int64_t N = 128;
  constexpr int64_t P = 64;
  const auto projections =
      products({C, H * (N + P) + R + P + H * N}) + products({H, R, N + N});
  return model_case(
      "latent attention step B1 S2048 H16",
      attention_work(1, H, 1, N + P),
      projections + products({H, S, 2 * R + P}),
      [=] {
        LatentAttention attention(LatentAttentionOptions(C, C, 2 * S, H));
        attention->eval();
        const auto past = at::randn({1, S, C});
        const auto x = at::randn({1, 1, C});
        const auto cache = std::make_shared<KVCache>(attention->make_cache(1));
        const torch::NoGradGuard no_grad;
        attention->decode(past, *cache);
        // Each step adds the same.
        attention->decode(x, *cache);
        const auto rows = cache->keys().squeeze(1).clone();
        cache->truncate(S);
        return ours_and_theirs(
            [=]() mutable {
              cache->truncate(S);
              return attention->decode(x, *cache);
            },
            [=] {
              const auto both = heads_of(
                  project(attention->kv_b_proj, rows.slice(-1, 0, R)), H);
              const auto shared =
                  rows.slice(-1, R).unsqueeze(1).expand({-1, H, -1, -1});
              const auto key = at::cat({both.slice(-1, 0, N), shared}, -1);
              const auto query = heads_of(project(attention->q_proj, x), H);
              const auto turned = functional::rotary_embedding(
                  query.slice(-1, N),
                  at::full({1}, S, torch::kLong),
                  *attention->options.rotary());
              return project(
                  attention->o_proj,
                  joined(sdpa(
                      at::cat({query.slice(-1, 0, N), turned}, -1),
                      key,
                      both.slice(-1, N),
                      std::nullopt,
                      false)));
            });
      });
}

} // namespace

std::vector<Case> model_cases() {
  return {
      padded_case(),
      packed_case(),
      cross_case(/*T=*/64, /*cached=*/false),
      cross_case(/*T=*/1, /*cached=*/true),
      wide_case(),
      normed_case(),
      latent_case()};
}

} // namespace torch_attention::benchmarks
