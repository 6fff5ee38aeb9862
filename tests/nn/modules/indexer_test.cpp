// The indexer of LatentAttention, against a choice of keys by definition.

#include <support/close.h>
#include <support/test.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <vector>

namespace indexer_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kIn = 10;
constexpr int64_t kRank = 7;

IndexerOptions index_options(int64_t topk) {
  return IndexerOptions(/*num_heads=*/3, /*head_dim=*/6, topk);
}

LatentAttentionOptions options_of(int64_t kv_rank = 8) {
  return LatentAttentionOptions(kIn, 12, 40, /*num_heads=*/3)
      .query_rank(kRank)
      .kv_rank(kv_rank)
      .nope_dim(6)
      .rope_dim(4)
      .value_dim(5);
}

/// A module with an indexer, and one with its weights but without it.
struct Both {
  LatentAttention chooses;
  LatentAttention plain;

  explicit Both(LatentAttentionOptions options, const IndexerOptions& index)
      : chooses(options.indexer(index)), plain(options.indexer(std::nullopt)) {
    const torch::NoGradGuard no_grad;
    auto known = plain->named_parameters();
    for (auto& named : chooses->named_parameters()) {
      named.value().copy_(torch::randn_like(named.value()) * 0.5);
      if (known.contains(named.key())) {
        known[named.key()].copy_(named.value());
      }
    }
    for (auto* module : {&chooses, &plain}) {
      (*module)->to(torch::kDouble);
      (*module)->eval();
    }
  }
};

torch::Tensor input(int64_t T) {
  return torch::randn({2, T, kIn}, torch::kDouble);
}

/// A choice of keys for each query.
struct Choice {
  /// bool (B, 1, T, T), true for what is not chosen
  torch::Tensor hidden;
  /// bool (B, T, 1), true for queries whose scores leave no doubt: where all
  /// products are negative, scores are equal.
  torch::Tensor is_clear;
};

/// Returns the scores (B, T, T) by plain operations, without their constant
/// factor.
torch::Tensor index_scores(LatentAttention attention, const torch::Tensor& x) {
  const torch::NoGradGuard no_grad;
  auto& indexer = attention->indexer;
  const auto& index = indexer->options;
  const auto rotate = [&](const torch::Tensor& heads) {
    const auto rotary = RotaryOptions(*attention->options.rotary())
                            .pairing(index.pairing())
                            .dim(attention->options.rope_dim());
    return functional::rotary_embedding(
        heads, torch::arange(x.size(1)), rotary);
  };
  const auto latents =
      attention->q_a_layernorm(attention->q_a_proj(x).unsqueeze(1)).squeeze(1);
  const auto q = rotate(indexer->wq_b(latents)
                            .view({x.size(0), x.size(1), index.num_heads(), -1})
                            .transpose(1, 2));
  const auto k = rotate(indexer->k_norm(indexer->wk(x)).unsqueeze(1));
  const auto w = indexer->weights_proj(x).transpose(1, 2).unsqueeze(-1);
  return (torch::matmul(q, k.transpose(-2, -1)).relu() * w).sum(1);
}

/// Returns the `topk` best keys of those that `hidden` (B, T, T) shows, one
/// number at a time.
Choice chosen(
    LatentAttention attention,
    const torch::Tensor& x,
    const torch::Tensor& hidden) {
  const auto all = index_scores(attention, x);
  const auto T = x.size(1);
  Choice choice{
      torch::ones({x.size(0), 1, T, T}, torch::kBool),
      torch::ones({x.size(0), T, 1}, torch::kBool)};
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t t = 0; t < T; ++t) {
      std::vector<std::pair<double, int64_t>> scores;
      for (int64_t s = 0; s < T; ++s) {
        if (!hidden[b][t][s].item<bool>()) {
          scores.emplace_back(-all[b][t][s].item<double>(), s);
        }
      }
      std::sort(scores.begin(), scores.end());
      const auto count =
          static_cast<size_t>(attention->indexer->options.topk());
      for (size_t i = 0; i < std::min(count, scores.size()); ++i) {
        choice.hidden[b][0][t][scores[i].second] = false;
      }
      if (count < scores.size() &&
          scores[count].first - scores[count - 1].first < 1e-4) {
        choice.is_clear[b][t][0] = false;
      }
    }
  }
  return choice;
}

torch::Tensor future(const torch::Tensor& x) {
  const auto T = x.size(1);
  return functional::causal_mask(T, T).expand({x.size(0), T, T});
}

/// Returns the rows of x (B, T, d_out) whose choice of keys is clear.
torch::Tensor clear_rows(const torch::Tensor& x, const Choice& choice) {
  return x.masked_select(choice.is_clear);
}

} // namespace

TEST_CASE("The indexer chooses the keys with the largest scores") {
  torch::manual_seed(70);
  int64_t num_clear = 0;
  for (int i = 0; i < 30; ++i) {
    const auto T = torch::randint(1, 20, {1}).item<int64_t>();
    const auto topk = torch::randint(1, 12, {1}).item<int64_t>();
    CAPTURE(i, T, topk);
    Both both(
        options_of().kernel(i % 3 == 0 ? Kernel::kReference : Kernel::kAuto),
        index_options(topk).pairing(
            i % 2 == 0 ? RotaryPairing::kHalves : RotaryPairing::kInterleaved));
    const auto x = input(T);
    const auto choice = chosen(both.chooses, x, future(x));
    num_clear += choice.is_clear.sum().item<int64_t>();
    const auto expected =
        both.plain->forward(x, ForwardOptions().mask(choice.hidden));
    CHECK_THAT(
        clear_rows(both.chooses->forward(x), choice),
        IsCloseTo(clear_rows(expected, choice)));
    const auto [context, weights] = both.chooses->forward_with_weights(x);
    CHECK_THAT(
        clear_rows(context, choice), IsCloseTo(clear_rows(expected, choice)));
    CHECK(weights.gt(0).sum(-1).max().item<int64_t>() <= topk);
  }
  CHECK(num_clear > 200);
}

TEST_CASE("The indexer chooses among the keys that a call shows") {
  torch::manual_seed(71);
  Both both(options_of(), index_options(3));
  const auto x = input(11);
  const auto padding = torch::arange(11).ge(torch::tensor({{6}, {11}}));
  const auto mask = torch::rand({11, 11}).lt(0.3);
  const auto hidden =
      future(x).logical_or(padding.unsqueeze(1)).logical_or(mask);
  const auto choice = chosen(both.chooses, x, hidden);
  const auto expected = both.plain->forward(
      x, ForwardOptions().mask(choice.hidden.logical_or(hidden.unsqueeze(1))));
  const auto call = ForwardOptions().mask(mask);
  for (const auto& each :
       {ForwardOptions(call).key_padding_mask(padding),
        ForwardOptions(call).key_lengths(torch::tensor({6, 11})),
        ForwardOptions().key_padding_mask(padding).bias(
            torch::zeros({11, 11}, torch::kDouble)
                .masked_fill(mask, -INFINITY))}) {
    CHECK_THAT(
        clear_rows(both.chooses->forward(x, each), choice),
        IsCloseTo(clear_rows(expected, choice)));
  }
}

TEST_CASE("A module with an indexer decodes what forward gives") {
  torch::manual_seed(72);
  // With the small latent vectors it pays to expand many tokens.
  const int64_t kv_rank = GENERATE(4, 40);
  Both both(options_of(kv_rank), index_options(4));
  const auto x = input(14);
  const auto choice = chosen(both.chooses, x, future(x));
  const auto expected = clear_rows(both.chooses->forward(x), choice);
  const bool in_blocks = GENERATE(false, true);
  auto cache = both.chooses->make_cache(2);
  BlockCache blocks(both.chooses->block_cache_options().max_blocks(8));
  const auto sequences = blocks.batch({blocks.admit(), blocks.admit()});
  std::vector<torch::Tensor> contexts;
  int64_t begin = 0;
  for (const int64_t T : {1, 6, 1, 1, 2, 1, 2}) {
    const auto tokens = x.slice(1, begin, begin + T);
    contexts.push_back(
        in_blocks ? both.chooses->decode(tokens, sequences)
                  : both.chooses->decode(tokens, cache));
    begin += T;
  }
  REQUIRE(begin == x.size(1));
  CHECK_THAT(clear_rows(torch::cat(contexts, 1), choice), IsCloseTo(expected));
}

TEST_CASE("Of keys with equal scores those of topk are chosen, as in Python") {
  torch::manual_seed(75);
  // With one head half of the scores are 0.
  Both both(options_of(), IndexerOptions(/*num_heads=*/1, 6, /*topk=*/9));
  const auto x = input(30);
  const torch::NoGradGuard no_grad;
  const auto scores = index_scores(both.chooses, x).to(torch::kFloat);
  CHECK(scores.eq(0).sum().item<int64_t>() > 300);
  const auto visible =
      scores.masked_fill(future(x), -std::numeric_limits<float>::infinity());
  const auto hidden =
      torch::ones_like(visible, torch::kBool)
          .scatter_(-1, std::get<1>(visible.topk(9, -1)), false);
  CHECK_THAT(
      both.chooses->forward(x),
      IsCloseTo(
          both.plain->forward(x, ForwardOptions().mask(hidden.unsqueeze(1)))));
}

TEST_CASE("Gradients pass an indexer by") {
  torch::manual_seed(73);
  Both both(options_of(), index_options(3));
  const auto x = input(9).requires_grad_();
  const auto choice = chosen(both.chooses, x, future(x));
  const auto mask = choice.hidden;
  const auto of_output =
      torch::randn({2, 9, 12}, torch::kDouble) * choice.is_clear;
  const auto gradient = [&](const torch::Tensor& output) {
    return torch::autograd::grad({(output * of_output).sum()}, {x})[0];
  };
  CHECK_THAT(
      gradient(both.chooses->forward(x)),
      IsCloseTo(gradient(both.plain->forward(x, ForwardOptions().mask(mask)))));
  both.chooses->forward(x).sum().backward();
  CHECK(!both.chooses->indexer->wk->weight.grad().defined());
  CHECK(both.chooses->kv_b_proj->weight.grad().defined());
}

TEST_CASE("An indexer refuses what does not fit") {
  torch::manual_seed(74);
  THROWS_WITH(
      LatentAttention(
          options_of().query_rank(std::nullopt).indexer(index_options(3))),
      "LatentAttention: expected a query_rank");
  THROWS_WITH(
      LatentAttention(options_of().rope_dim(8).indexer(index_options(3))),
      "LatentAttention: expected indexer.head_dim >= rope_dim = 8, but got 6");
  THROWS_WITH(
      LatentAttention(options_of().indexer(index_options(0))),
      "Indexer: expected topk > 0");
  Both both(options_of(), index_options(3));
  THROWS_WITH(
      both.chooses->forward(
          input(5)[0], ForwardOptions().cu_seqlens(torch::tensor({0, 2, 5}))),
      "LatentAttention: expected a padded batch");
  THROWS_WITH(
      both.chooses->forward(
          input(5),
          ForwardOptions().mask(torch::zeros({2, 3, 5, 5}, torch::kBool))),
      "LatentAttention: expected a mask for all heads");
  auto own_cache = both.chooses->make_cache(2);
  THROWS_WITH(
      both.chooses->decode(
          input(2),
          own_cache,
          DecodeOptions().bias(torch::zeros({2, 3, 2, 2}, torch::kDouble))),
      "LatentAttention: expected a bias for all heads");
  auto cache = both.plain->make_cache(2);
  THROWS_WITH(
      both.chooses->decode(input(5), cache),
      "head_dim = kv_rank + rope_dim + indexer.head_dim = 18");
  std::ostringstream text;
  text << *both.chooses;
  CHECK_THAT(
      text.str(),
      ContainsText("indexer_heads=3, indexer_head_dim=6, indexer_topk=3"));
}

} // namespace indexer_test
