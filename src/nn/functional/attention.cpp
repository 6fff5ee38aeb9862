#include <torch_attention/nn/functional/attention.h>

#include <kernels/attention.h>
#include <kernels/choice.h>
#include <kernels/heads.h>
#include <kernels/plain.h>
#include <kernels/positions.h>
#include <kernels/sequences.h>
#include <nn/checks.h>
#include <nn/functional/attention_of_call.h>
#include <nn/score_rule.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

namespace torch_attention::functional {

namespace {

using Options = ScaledDotProductAttentionFuncOptions;

constexpr const char* kName = "scaled_dot_product_attention";

void check_broadcasts_to_scores(
    const char* what,
    const torch::Tensor& tensor,
    torch::IntArrayRef scores) {
  const auto sizes = tensor.sizes();
  bool fits = sizes.size() <= scores.size();
  for (size_t i = 1; fits && i <= sizes.size(); ++i) {
    const auto size = sizes[sizes.size() - i];
    fits = size == 1 || size == scores[scores.size() - i];
  }
  TORCH_CHECK(
      fits,
      kName,
      ": expected a ",
      what,
      " that broadcasts to the scores ",
      scores,
      ", but got ",
      sizes);
}

void check_mask_and_bias(
    const Options& options,
    const torch::Tensor& query,
    torch::IntArrayRef scores) {
  const auto check_device = [&](const char* what, const torch::Tensor& tensor) {
    TORCH_CHECK(
        tensor.device() == query.device(),
        kName,
        ": expected the ",
        what,
        " on ",
        query.device(),
        ", where the query is, but got ",
        tensor.device());
  };
  if (options.mask().defined()) {
    checks::check_dense(kName, "mask", options.mask());
    TORCH_CHECK(
        options.mask().scalar_type() == torch::kBool,
        kName,
        ": expected a bool mask (true hides), but got ",
        options.mask().scalar_type(),
        "; convert it with .to(torch::kBool), or pass what is to be added to "
        "the scores as `bias`");
    check_device("mask", options.mask());
    check_broadcasts_to_scores("mask", options.mask(), scores);
  }
  if (options.bias().defined()) {
    checks::check_dense(kName, "bias", options.bias());
    TORCH_CHECK(
        options.bias().scalar_type() != torch::kBool,
        kName,
        ": expected a floating-point bias, but got Bool; pass a bool mask as "
        "`mask`");
    checks::check_floating(kName, "a ", "bias", options.bias());
    check_device("bias", options.bias());
    check_broadcasts_to_scores("bias", options.bias(), scores);
  }
}

void check_tensors(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value) {
  const auto check_one = [&](const char* what, const torch::Tensor& tensor) {
    TORCH_CHECK(tensor.defined(), kName, ": the ", what, " is undefined");
    checks::check_dense(kName, what, tensor);
    TORCH_CHECK(
        tensor.dim() >= 2,
        kName,
        ": expected a ",
        what,
        " of shape (..., tokens, head_dim), but got ",
        tensor.sizes());
    checks::check_floating(kName, "a ", what, tensor);
    TORCH_CHECK(
        tensor.device() == query.device() &&
            tensor.scalar_type() == query.scalar_type(),
        kName,
        ": expected query, key and value of one dtype on one device, but got "
        "query ",
        query.scalar_type(),
        " on ",
        query.device(),
        ", ",
        what,
        " ",
        tensor.scalar_type(),
        " on ",
        tensor.device());
  };
  check_one("query", query);
  check_one("key", key);
  check_one("value", value);
  TORCH_CHECK(
      query.size(-1) == key.size(-1) && query.size(-1) > 0,
      kName,
      ": expected query and key of the same head_dim > 0, but got query ",
      query.sizes(),
      ", key ",
      key.sizes());
  TORCH_CHECK(
      key.size(-2) == value.size(-2),
      kName,
      ": expected as many keys as values, but got key ",
      key.sizes(),
      ", value ",
      value.sizes());
}

/// Gives query, key and value the same leading dimensions; those of heads only
/// if they are `shared`.
void broadcast_leading(kernels::Attention& a, bool shared) {
  const int64_t kept = shared ? 3 : 2;
  const auto leading = [&](const torch::Tensor& x) {
    return x.sizes().slice(0, static_cast<size_t>(x.dim() - kept));
  };
  if (leading(a.query) == leading(a.key) &&
      leading(a.query) == leading(a.value)) {
    return;
  }
  std::vector<int64_t> sizes;
  try {
    sizes = at::infer_size(leading(a.query), leading(a.key));
    sizes = at::infer_size(sizes, leading(a.value));
  } catch (const c10::Error&) {
    TORCH_CHECK(
        false,
        kName,
        ": expected leading dimensions that broadcast, but got query ",
        a.query.sizes(),
        ", key ",
        a.key.sizes(),
        ", value ",
        a.value.sizes());
  }
  for (auto* x : {&a.query, &a.key, &a.value}) {
    auto expanded = sizes;
    for (auto i = kept; i > 0; --i) {
      expanded.push_back(x->size(-i));
    }
    *x = x->expand(expanded);
  }
}

/// Gives memory to zeros that have none: beside those LibTorch's own kernel
/// returns an output that it has not written.
void give_memory(torch::Tensor& x) {
  if (x.defined() && x._is_zerotensor()) {
    x = x + at::zeros({}, x.options());
  }
}

void check_shared_heads(const kernels::Attention& a) {
  TORCH_CHECK(
      a.query.dim() >= 3 && a.key.dim() >= 3 && a.value.dim() >= 3 &&
          a.key.size(-3) == a.value.size(-3) && a.key.size(-3) > 0 &&
          a.query.size(-3) % a.key.size(-3) == 0,
      kName,
      ": expected, with enable_gqa, query (..., H, T, D) and key and value "
      "(..., G, S, D) with H divisible by G, but got query ",
      a.query.sizes(),
      ", key ",
      a.key.sizes(),
      ", value ",
      a.value.sizes());
}

/// One number for each of B sequences, on the device of `query`.
torch::Tensor counts_for_batch(
    const char* what,
    const torch::Tensor& counts,
    const torch::Tensor& query,
    int64_t B) {
  if (!counts.defined()) {
    return counts;
  }
  checks::check_has_numbers(kName, what, counts, query.device());
  TORCH_CHECK(
      query.dim() == 3 || query.dim() == 4,
      kName,
      ": expected, with ",
      what,
      ", a query of shape (B, T, D) or (B, H, T, D), but got ",
      query.sizes());
  TORCH_CHECK(
      checks::has_integers(counts) && counts.dim() == 1 && counts.size(0) == B,
      kName,
      ": expected ",
      what,
      " of an integer dtype and shape (B) = [",
      B,
      "], but got ",
      counts.scalar_type(),
      " of shape ",
      counts.sizes());
  return checks::to_int64(counts).to(query.device());
}

/// One number for each head, on the device of `query`, float32 or float64.
torch::Tensor numbers_for_heads(
    const char* what,
    const torch::Tensor& numbers,
    const torch::Tensor& query) {
  if (!numbers.defined()) {
    return numbers;
  }
  TORCH_CHECK(
      query.dim() == 4,
      kName,
      ": expected, with ",
      what,
      ", a query of shape (B, H, T, D), but got ",
      query.sizes());
  checks::check_has_numbers(kName, what, numbers, query.device());
  TORCH_CHECK(
      numbers.is_floating_point() && numbers.dim() == 1 &&
          numbers.size(0) == query.size(1),
      kName,
      ": expected floating-point ",
      what,
      " of shape (H) = [",
      query.size(1),
      "], but got ",
      numbers.scalar_type(),
      " of shape ",
      numbers.sizes());
  const auto dtype =
      query.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return numbers.to(query.device(), dtype);
}

/// The caller's function, whose result is checked. Without a batch of its own
/// the query has got one, of which the function is not to know.
std::function<torch::Tensor(const torch::Tensor&)> checked_function(
    const char* what,
    const std::function<torch::Tensor(const torch::Tensor&)>& function,
    bool without_batch = false) {
  if (!function) {
    return function;
  }
  return [what, function, without_batch](const torch::Tensor& x) {
    const auto given = without_batch ? x.squeeze(0) : x;
    const auto changed = function(given);
    TORCH_CHECK(
        changed.defined(),
        kName,
        ": the tensor that `",
        what,
        "` gave is undefined");
    checks::check_dense(
        kName, c10::str("tensor that `", what, "` gave").c_str(), changed);
    TORCH_CHECK(
        changed.sizes() == given.sizes() &&
            changed.scalar_type() == given.scalar_type() &&
            changed.device() == given.device(),
        kName,
        ": expected `",
        what,
        "` to give what it gets, ",
        given.scalar_type(),
        " of shape ",
        given.sizes(),
        " on ",
        given.device(),
        ", but got ",
        changed.scalar_type(),
        " of shape ",
        changed.sizes(),
        " on ",
        changed.device());
    return without_batch ? changed.unsqueeze(0) : changed;
  };
}

/// Returns what `options` ask for, but for dropout and the tensors that need a
/// query.
kernels::Attention attention_of(const Options& options) {
  checks::check_scale(kName, options.scale());
  checks::check_windows(
      kName, options.causal(), options.window(), options.window_after());
  checks::check_chunk(
      kName, options.chunk(), options.window(), options.window_after());
  checks::check_softcap(kName, options.softcap());
  kernels::Attention attention;
  attention.rule = rule_of(options);
  attention.mask = options.mask();
  attention.bias = options.bias();
  attention.score_function = checked_function("scores", options.scores());
  attention.weight_function = checked_function("weights", options.weights());
  return attention;
}

/// Sets what depends on the lengths and positions of each of B sequences, or on
/// heads. `x` has the leading dimensions of the query.
void set_numbers(
    kernels::Attention& attention,
    const Options& options,
    const torch::Tensor& x,
    int64_t B) {
  attention.key_lengths =
      counts_for_batch("key_lengths", options.key_lengths(), x, B);
  attention.query_offsets =
      counts_for_batch("query_offsets", options.query_offsets(), x, B);
  attention.alibi_slopes =
      numbers_for_heads("alibi_slopes", options.alibi_slopes(), x);
  attention.sinks = numbers_for_heads("sinks", options.sinks(), x);
}

/// Checks that tensors, which broadcast to those of `attention`, can hold
/// packed sequences.
void check_packed(const kernels::Attention& a, const torch::Tensor& query) {
  TORCH_CHECK(
      a.query.dim() == query.dim() &&
          (query.dim() == 3 || (query.dim() == 4 && a.query.size(0) == 1)),
      kName,
      ": expected, with cu_seqlens, query, key and value of shape (1, H, N, D) "
      "or (H, N, D), but got query ",
      query.sizes(),
      ", key ",
      a.key.sizes(),
      ", value ",
      a.value.sizes());
}

/// Sets where packed sequences begin. Returns the sizes of their scores in a
/// padded batch, (B, H, longest T, longest S).
std::vector<int64_t> set_starts(
    kernels::Attention& attention,
    const Options& options) {
  const auto& queries = options.cu_seqlens();
  const auto& keys = options.cu_seqlens_k();
  attention.query_starts =
      checks::to_starts(kName, "cu_seqlens", queries, attention.query.size(-2));
  attention.key_starts = checks::to_starts(
      kName,
      keys.defined() ? "cu_seqlens_k" : "cu_seqlens",
      keys.defined() ? keys : queries,
      attention.key.size(-2));
  const auto count = attention.query_starts.size(0);
  TORCH_CHECK(
      attention.key_starts.size(0) == count,
      kName,
      ": expected cu_seqlens_k of as many sequences as cu_seqlens has, ",
      count - 1,
      ", but got ",
      attention.key_starts.size(0) - 1);
  return {
      count - 1,
      attention.query.size(-3),
      kernels::longest_sequence(attention.query_starts),
      kernels::longest_sequence(attention.key_starts)};
}

} // namespace

namespace detail {

bool lacks_batch(const Options& options, const torch::Tensor& query) {
  return query.dim() == 3 &&
      (options.cu_seqlens().defined() ||
       (options.enable_gqa() && !options.key_lengths().defined() &&
        !options.query_offsets().defined()));
}

kernels::Attention attention_of_call(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Options& options) {
  check_tensors(query, key, value);
  checks::check_dropout(kName, options.dropout());
  auto attention = attention_of(options);
  attention.query = query;
  attention.key = key;
  attention.value = value;
  attention.dropout = options.training() ? options.dropout() : 0.0;
  bool shared = options.enable_gqa();
  if (shared) {
    check_shared_heads(attention);
    if (query.dim() == 3 && !lacks_batch(options, query)) {
      attention.key = kernels::share_heads(key, query);
      attention.value = kernels::share_heads(value, query);
      shared = false;
    }
  }
  broadcast_leading(attention, shared);
  auto scores = attention.query.sizes().vec();
  scores.back() = key.size(-2);
  auto num_sequences = scores.front();
  TORCH_CHECK(
      options.cu_seqlens().defined() || !options.cu_seqlens_k().defined(),
      kName,
      ": expected cu_seqlens beside cu_seqlens_k");
  if (options.cu_seqlens().defined()) {
    check_packed(attention, query);
    scores = set_starts(attention, options);
    num_sequences = scores.front();
  }
  if (lacks_batch(options, query)) {
    // Mask and bias broadcast along it.
    const bool without_batch = !options.cu_seqlens().defined();
    attention.score_function =
        checked_function("scores", options.scores(), without_batch);
    attention.weight_function =
        checked_function("weights", options.weights(), without_batch);
    for (auto* x : {&attention.query, &attention.key, &attention.value}) {
      *x = x->unsqueeze(0);
    }
  }
  set_numbers(attention, options, attention.query, num_sequences);
  check_mask_and_bias(options, query, scores);
  for (auto* x : kernels::tensors_of(attention)) {
    give_memory(*x);
  }
  return attention;
}
} // namespace detail

torch::Tensor softmax_naive(const torch::Tensor& x, int64_t dim) {
  TORCH_CHECK(x.defined(), "softmax_naive: the input is undefined");
  const auto exp_x = torch::exp(x);
  return exp_x / exp_x.sum(dim, /*keepdim=*/true);
}

torch::Tensor attention_scores(
    const torch::Tensor& query,
    const torch::Tensor& key) {
  TORCH_CHECK(
      query.defined() && key.defined(),
      "attention_scores: the ",
      query.defined() ? "key" : "query",
      " is undefined");
  kernels::check_device("attention_scores", "key", key, query.device());
  TORCH_CHECK(
      query.dim() >= 1 && key.dim() >= 2 && query.size(-1) == key.size(-1),
      "attention_scores: expected query (..., T, D) and key (..., S, D), but "
      "got query ",
      query.sizes(),
      ", key ",
      key.sizes());
  if (query.dim() == 1) {
    return torch::matmul(key, query);
  }
  return torch::matmul(query, key.transpose(-2, -1));
}

torch::Tensor causal_mask(int64_t T, int64_t S, torch::Device device) {
  TORCH_CHECK(
      T >= 0 && S >= 0,
      "causal_mask: expected sizes >= 0, but got T = ",
      T,
      ", S = ",
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
  TORCH_CHECK(scores.defined(), kWeights, ": the scores are undefined");
  checks::check_dense(kWeights, "tensor of scores", scores);
  checks::check_floating(kWeights, "", "scores", scores);
  TORCH_CHECK(
      scores.dim() >= 2,
      kWeights,
      ": expected scores of shape (..., T, S), but got ",
      scores.sizes());
  TORCH_CHECK(
      head_dim > 0,
      "attention_weights: expected head_dim > 0, but got ",
      head_dim);
  auto attention = attention_of(options);
  TORCH_CHECK(
      !options.cu_seqlens().defined() && !options.cu_seqlens_k().defined(),
      kWeights,
      ": expected scores of one sequence or of a padded batch, but got "
      "cu_seqlens");
  check_mask_and_bias(options, scores, scores.sizes());
  set_numbers(attention, options, scores, scores.size(0));
  return kernels::weights_of_scores(scores.clone(), head_dim, attention);
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
    TORCH_CHECK(
        !is_changed || options.kernel() != Kernel::kFused,
        kName,
        ": Kernel::kFused never forms the ",
        what,
        ", which a function is to change; use Kernel::kReference or "
        "Kernel::kAuto");
  };
  check_formed("scores", static_cast<bool>(options.scores()));
  check_formed("weights", static_cast<bool>(options.weights()));
  const auto attention =
      of_heads(attention_of_call(query, key, value, options), heads);
  const auto kernel = kernels::choose(attention, options.kernel());
  // LibTorch's kernels save less, and say so themselves.
  if (kernel != kernels::Choice::kLibTorch) {
    checks::check_can_be_saved(kName, kernels::tensors_of(attention));
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
      kName,
      "_with_weights: Kernel::kFused never forms the weights; use "
      "Kernel::kReference or Kernel::kAuto");
  checks::check_not_packed(
      "scaled_dot_product_attention_with_weights", options.cu_seqlens());
  const auto attention =
      of_heads(attention_of_call(query, key, value, options), heads);
  checks::check_can_be_saved(kName, kernels::tensors_of(attention));
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
