#include <torch_attention/nn/functional/attention.h>

#include <check.h>
#include <kernels/attention.h>
#include <kernels/choice.h>
#include <kernels/positions.h>
#include <nn/checks.h>
#include <nn/functional/attend.h>
#include <nn/functional/checked_attention.h>

#include <cmath>
#include <vector>

namespace torch_attention::functional {

namespace {

using Options = ScaledDotProductAttentionFuncOptions;

} // namespace

torch::Tensor softmax_naive(const torch::Tensor& x, int64_t dim) {
  TORCH_CHECK(x.defined(), "softmax_naive: the input is undefined");
  const auto exp_x = torch::exp(x);
  return exp_x / exp_x.sum(dim, /*keepdim=*/true);
}

torch::Tensor attention_scores(
    const torch::Tensor& query,
    const torch::Tensor& key) {
  TORCH_ATTENTION_CHECK(
      query.defined() && key.defined(),
      "attention_scores: the {} is undefined",
      query.defined() ? "key" : "query");
  kernels::check_device("attention_scores", "key", key, query.device());
  TORCH_ATTENTION_CHECK(
      query.dim() >= 1 && key.dim() >= 2 && query.size(-1) == key.size(-1),
      "attention_scores: expected query (..., T, D) and key (..., S, D), "
      "but got query {}, key {}",
      query.sizes(),
      key.sizes());
  if (query.dim() == 1) {
    return torch::matmul(key, query);
  }
  return torch::matmul(query, key.transpose(-2, -1));
}

torch::Tensor causal_mask(int64_t T, int64_t S, torch::Device device) {
  TORCH_ATTENTION_CHECK(
      T >= 0 && S >= 0,
      "causal_mask: expected sizes >= 0, but got T = {}, S = {}",
      T,
      S);
  return kernels::causal_mask(T, S, device);
}

torch::Tensor alibi_slopes(int64_t num_heads) {
  checks::check_positive("alibi_slopes", "num_heads", num_heads);
  int64_t power = 1;
  while (power <= num_heads / 2) {
    power *= 2;
  }
  const auto slopes = torch::empty({num_heads}, torch::kFloat);
  auto* slope = slopes.mutable_data_ptr<float>();
  for (int64_t i = 0; i < num_heads; ++i) {
    const auto exponent = i < power
        ? static_cast<double>(i + 1) / static_cast<double>(power)
        : (static_cast<double>(i - power) + 0.5) / static_cast<double>(power);
    slope[i] = static_cast<float>(std::exp2(-8 * exponent));
  }
  return slopes;
}

torch::Tensor attention_weights(
    const torch::Tensor& scores,
    int64_t head_dim,
    const Options& options) {
  constexpr auto kWeights = "attention_weights";
  TORCH_CHECK(scores.defined(), "attention_weights: the scores are undefined");
  checks::check_dense(kWeights, "tensor of scores", scores);
  checks::check_floating(kWeights, "", "scores", scores);
  TORCH_ATTENTION_CHECK(
      scores.dim() >= 2,
      "attention_weights: expected scores of shape (..., T, S), but got {}",
      scores.sizes());
  TORCH_ATTENTION_CHECK(
      head_dim > 0,
      "attention_weights: expected head_dim > 0, but got {}",
      head_dim);
  TORCH_CHECK(
      !options.cu_seqlens().defined() && !options.cu_seqlens_k().defined(),
      "attention_weights: expected scores of one sequence or of a padded "
      "batch, but got cu_seqlens");
  return kernels::weights_of_scores(
      scores.clone(), head_dim, detail::checked_options(options, scores));
}

namespace detail {

namespace {

kernels::Attention of_heads(
    kernels::Attention attention,
    const kernels::SharedHeads& heads) {
  attention.heads = heads;
  return attention;
}

} // namespace

torch::Tensor attend(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Options& options,
    const kernels::SharedHeads& heads) {
  const auto check_formed = [&](const char* what, bool is_changed) {
    TORCH_ATTENTION_CHECK(
        !is_changed || options.kernel() != Kernel::kFused,
        "scaled_dot_product_attention: Kernel::kFused never forms the {}, "
        "which a function is to change; use Kernel::kReference or "
        "Kernel::kAuto",
        what);
  };
  check_formed("scores", static_cast<bool>(options.scores()));
  check_formed("weights", static_cast<bool>(options.weights()));
  const auto attention =
      of_heads(checked_attention(query, key, value, options), heads);
  const auto kernel = kernels::choose(attention, options.kernel());
  // LibTorch's kernels save fewer tensors, and check them.
  if (kernel != kernels::Choice::kLibTorch) {
    checks::check_can_be_saved(kAttentionName, kernels::tensors_of(attention));
  }
  const auto output = kernels::compute(kernel, attention);
  return lacks_batch(options, query) ? output.squeeze(0) : output;
}

std::tuple<torch::Tensor, torch::Tensor> attend_with_weights(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Options& options,
    const kernels::SharedHeads& heads) {
  TORCH_CHECK(
      options.kernel() != Kernel::kFused,
      "scaled_dot_product_attention_with_weights: Kernel::kFused never "
      "forms the weights; use Kernel::kReference or Kernel::kAuto");
  checks::check_not_packed(
      "scaled_dot_product_attention_with_weights", options.cu_seqlens());
  const auto attention =
      of_heads(checked_attention(query, key, value, options), heads);
  checks::check_can_be_saved(kAttentionName, kernels::tensors_of(attention));
  const auto [output, weights] = kernels::reference(attention);
  if (lacks_batch(options, query)) {
    return {output.squeeze(0), weights.squeeze(0)};
  }
  return {output, weights};
}

} // namespace detail

torch::Tensor scaled_dot_product_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Options& options) {
  return detail::attend(query, key, value, options, {});
}

std::tuple<torch::Tensor, torch::Tensor>
scaled_dot_product_attention_with_weights(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Options& options) {
  return detail::attend_with_weights(query, key, value, options, {});
}

} // namespace torch_attention::functional
