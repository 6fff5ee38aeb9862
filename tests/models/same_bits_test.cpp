// Bits of whole models' logits, alone and with others.

#include <support/same_bits.h>
#include <support/sanitized.h>
#include <support/test.h>

#include <torch_attention/models/gpt2.h>
#include <torch_attention/models/llama.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <random>

namespace same_bits_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kVocabulary = 301;

// Widths are not whole vectors.
std::shared_ptr<models::LanguageModel> llama() {
  const auto attention = MultiHeadAttentionOptions(180, 180, 1024, 6)
                             .num_kv_heads(2)
                             .rotary(RotaryOptions());
  auto windowed = attention;
  windowed.window(100)
      .output_gate(OutputGateOptions())
      .temperature(TemperatureOptions(20));
  return std::make_shared<models::LlamaImpl>(
      models::LlamaOptions()
          .vocab_size(kVocabulary)
          .hidden_size(180)
          .intermediate_size(501)
          .logit_softcap(30)
          .attention({attention, windowed}));
}

std::shared_ptr<models::LanguageModel> gpt2(const std::string& activation) {
  return std::make_shared<models::Gpt2Impl>(models::Gpt2Options()
                                                .vocab_size(kVocabulary)
                                                .context_length(256)
                                                .emb_dim(72)
                                                .n_heads(3)
                                                .n_layers(2)
                                                .hidden_dim(275)
                                                .qkv_bias(true)
                                                .activation(activation));
}

/// Returns the logits (V) after the ids (T) that are given in pieces.
torch::Tensor logits_of(
    models::LanguageModel& model,
    const torch::Tensor& ids,
    std::mt19937& random,
    int64_t longest) {
  auto caches = model.make_caches(1);
  torch::Tensor logits;
  for (int64_t begin = 0; begin < ids.size(0);) {
    const auto n = std::min(
        ids.size(0) - begin, 1 + static_cast<int64_t>(random()) % longest);
    logits = model.decode(ids.slice(0, begin, begin + n).unsqueeze(0), caches);
    begin += n;
  }
  return logits[0];
}

/// Checks prompts of different lengths, and steps after them.
void check_batch(
    models::LanguageModel& model,
    const torch::Tensor& ids,
    std::mt19937& random) {
  const auto B = ids.size(0);
  const auto T = ids.size(1);
  const int64_t steps = std::min<int64_t>(4, T / 3);
  const auto longest = T - steps;
  auto padded = torch::zeros({B, longest}, torch::kLong);
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b < B; ++b) {
    const auto n =
        b == 0 ? longest : 1 + static_cast<int64_t>(random()) % longest;
    lengths.push_back(n);
    padded[b].slice(0, longest - n).copy_(ids[b].slice(0, 0, n));
  }
  auto caches = model.make_caches(B);
  auto logits = model.decode(
      padded, caches, DecodeOptions(torch::tensor(lengths)).left_padded(true));
  for (int64_t step = 0; step <= steps; ++step) {
    CAPTURE(step);
    std::vector<torch::Tensor> next;
    for (int64_t b = 0; b < B; ++b) {
      CAPTURE(b, lengths[static_cast<size_t>(b)]);
      const auto n = lengths[static_cast<size_t>(b)] + step;
      const auto alone = logits_of(model, ids[b].slice(0, 0, n), random, n);
      CHECK(torch::equal(logits[b], alone));
      next.push_back(ids[b].slice(0, n, n + 1));
    }
    if (step < steps) {
      logits = model.decode(torch::stack(next), caches);
    }
  }
}

void check(models::LanguageModel& model, const torch::Tensor& ids) {
  const torch::NoGradGuard no_grad;
  const SameBits same_bits;
  std::mt19937 random(3);
  const auto all = model.forward(ids);
  const auto T = ids.size(1);
  for (int64_t b = 0; b < ids.size(0); ++b) {
    CAPTURE(b);
    CHECK(torch::equal(model.forward(ids.slice(0, b, b + 1))[0], all[b]));
    for (const int64_t longest : {T, int64_t{60}, int64_t{9}, int64_t{1}}) {
      CAPTURE(longest);
      CHECK(torch::equal(
          logits_of(model, ids[b], random, longest), all[b].select(0, T - 1)));
      if (b > 0) {
        break;
      }
    }
  }
  const auto threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 2 : 1);
  CHECK(torch::equal(model.forward(ids), all));
  at::set_num_threads(threads);
  check_batch(model, ids, random);
}

} // namespace

TEST_CASE("Logits have the same bits alone and in batches and pieces") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kHalf);
  CAPTURE(dtype);
  torch::manual_seed(1);
  const auto check_model = [&](const auto& model, int64_t T) {
    model->to(dtype);
    model->eval();
    check(*model, torch::randint(kVocabulary, {3, T}, torch::kLong));
  };
  SECTION("of a Llama with SiLU") {
    check_model(llama(), unless_sanitized(560, 130));
  }
  SECTION("of a GPT-2 with GELU by tanh") {
    check_model(gpt2("gelu_new"), unless_sanitized(190, 80));
  }
  SECTION("of a GPT-2 with GELU by erf") {
    check_model(gpt2("gelu"), unless_sanitized(190, 80));
  }
}

} // namespace same_bits_test
