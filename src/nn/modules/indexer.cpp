#include <nn/modules/indexer.h>

#include <check.h>
#include <kernels/heads.h>
#include <nn/checks.h>
#include <nn/modules/projected.h>
#include <torch_attention/nn/functional/attention.h>
#include <undrawn_weights.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>
#include <limits>
#include <ostream>

namespace torch_attention {

namespace {

constexpr const char* kIndexer = "Indexer";

/// Returns the scores (B, T, S) in float32. One head at a time: their scores
/// together would need memory for num_heads x T x S.
torch::Tensor index_scores(
    const detail::IndexQueries& queries,
    const torch::Tensor& keys) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const auto transposed = keys.squeeze(1).to(torch::kFloat).transpose(1, 2);
  torch::Tensor sum;
  for (int64_t head = 0; head < queries.queries.size(1); ++head) {
    const auto query = queries.queries.select(1, head).to(torch::kFloat);
    auto scores = torch::matmul(query, transposed)
                      .relu_()
                      .mul_(queries.weights.select(1, head));
    sum = sum.defined() ? sum.add_(scores) : scores;
  }
  return sum;
}

/// Returns which `count` scores of each row (..., S) are the largest. Of equal
/// ones, such as zeros where all products are negative, those that Python's
/// class takes, by the function that it calls.
torch::Tensor largest_of_rows(const torch::Tensor& scores, int64_t count) {
  const auto indices = std::get<1>(scores.topk(count, -1));
  return torch::zeros_like(scores, torch::kBool).scatter_(-1, indices, true);
}

/// Throws if `x`, which broadcasts to the scores (B, H, T, S), has several
/// heads.
void check_one_head(const char* what, const torch::Tensor& x) {
  TORCH_ATTENTION_CHECK(
      !x.defined() || x.dim() < 3 || x.size(-3) == 1,
      "LatentAttention: expected a {} for all heads, since the indexer chooses "
      "the same keys for all, but got one of shape {}",
      what,
      c10::str(x.sizes()));
}

} // namespace

IndexerImpl::IndexerImpl(
    int64_t d_in_,
    int64_t query_rank_,
    const IndexerOptions& options_)
    : options(options_), d_in(d_in_), query_rank(query_rank_) {
  IndexerImpl::reset();
}

void IndexerImpl::reset() {
  checks::check_positive(kIndexer, "d_in", d_in);
  checks::check_positive(kIndexer, "query_rank", query_rank);
  checks::check_positive(kIndexer, "num_heads", options.num_heads());
  checks::check_positive(kIndexer, "head_dim", options.head_dim());
  checks::check_positive(kIndexer, "topk", options.topk());
  checks::check_eps(kIndexer, options.norm_eps());
  const auto H = options.num_heads();
  const auto D = options.head_dim();
  wq_b = register_module("wq_b", make_linear(query_rank, H * D, false));
  wk = register_module("wk", make_linear(d_in, D, false));
  k_norm = register_module(
      "k_norm",
      torch::nn::LayerNorm(
          torch::nn::LayerNormOptions({D}).eps(options.norm_eps())));
  weights_proj = register_module("weights_proj", make_linear(d_in, H, false));
}

void IndexerImpl::reset_parameters() {
  wq_b->reset_parameters();
  wk->reset_parameters();
  k_norm->reset_parameters();
  weights_proj->reset_parameters();
}

void IndexerImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::Indexer(num_heads=" << options.num_heads()
         << ", head_dim=" << options.head_dim() << ", topk=" << options.topk()
         << ", pairing=" << options.pairing() << ")";
}

namespace detail {

torch::Tensor index_keys(
    IndexerImpl& indexer,
    const torch::Tensor& x,
    const RotaryAngles& angles,
    Kernel kernel) {
  const torch::NoGradGuard no_grad;
  const auto keys = indexer.k_norm(linear(indexer.wk, x, kernel)).unsqueeze(1);
  return rotate(keys, angles, indexer.options.pairing(), kernel);
}

IndexQueries index_queries(
    IndexerImpl& indexer,
    const torch::Tensor& x,
    const torch::Tensor& latent,
    const RotaryAngles& angles,
    Kernel kernel) {
  const torch::NoGradGuard no_grad;
  const auto& options = indexer.options;
  const auto heads = kernels::split_heads(
      linear(indexer.wq_b, latent, kernel), options.num_heads());
  // relu(q k / sqrt(head_dim)) w / sqrt(num_heads) = relu(q k) times this.
  const auto factor = 1 /
      std::sqrt(static_cast<double>(options.head_dim()) *
                static_cast<double>(options.num_heads()));
  const auto weights = linear(indexer.weights_proj, x, kernel)
                           .to(torch::kFloat)
                           .mul(factor)
                           .transpose(1, 2)
                           .unsqueeze(-1);
  return {rotate(heads, angles, options.pairing(), kernel), weights};
}

void check_chooses_for_all_heads(
    const functional::ScaledDotProductAttentionFuncOptions& options) {
  check_one_head("mask", options.mask());
  check_one_head("bias", options.bias());
  TORCH_ATTENTION_CHECK(
      !options.block_mask().defined() || options.block_mask().num_heads() == 1,
      "LatentAttention: expected a block_mask for all heads, since the indexer "
      "chooses the same keys for all, but got one of {} heads",
      options.block_mask().num_heads());
}

void hide_unchosen(
    const IndexerImpl& indexer,
    const IndexQueries& queries,
    const torch::Tensor& keys,
    functional::ScaledDotProductAttentionFuncOptions& options) {
  const torch::NoGradGuard no_grad;
  const auto topk = indexer.options.topk();
  if (keys.size(2) <= topk) {
    return; // all keys are chosen
  }
  auto scores = index_scores(queries, keys).unsqueeze(1); // (B, 1, T, S)
  if (options.bias().defined()) {
    scores = scores + options.bias().to(scores.scalar_type());
  }
  // The weights of equal scores are 0 for what is hidden, and only there.
  auto visible = options;
  visible.bias({}).scores({}).scale(1);
  const auto weights =
      functional::attention_weights(torch::zeros_like(scores), 1, visible);
  scores.masked_fill_(weights.eq(0), -std::numeric_limits<float>::infinity());
  const auto unchosen = largest_of_rows(scores, topk).logical_not();
  options.mask(
      options.mask().defined() ? options.mask().logical_or(unchosen)
                               : unchosen);
}

} // namespace detail

} // namespace torch_attention
