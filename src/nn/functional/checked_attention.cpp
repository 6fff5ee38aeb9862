#include <nn/functional/checked_attention.h>

#include <check.h>
#include <kernels/attention.h>
#include <kernels/elements.h>
#include <kernels/heads.h>
#include <kernels/plain.h>
#include <kernels/positions.h>
#include <kernels/sequences.h>
#include <nn/checks.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <vector>

namespace torch_attention::functional {

namespace {

using Options = ScaledDotProductAttentionFuncOptions;

void check_broadcasts_to_scores(
    const char* what,
    const torch::Tensor& tensor,
    torch::IntArrayRef scores) {
  const auto sizes = tensor.sizes();
  TORCH_ATTENTION_CHECK(
      at::is_expandable_to(sizes, scores),
      "scaled_dot_product_attention: expected a {} that broadcasts to "
      "the scores {}, but got {}",
      what,
      scores,
      sizes);
}

void check_mask_and_bias(
    const Options& options,
    const torch::Tensor& query,
    torch::IntArrayRef scores) {
  const auto check_device = [&](const char* what, const torch::Tensor& tensor) {
    TORCH_ATTENTION_CHECK(
        tensor.device() == query.device(),
        "scaled_dot_product_attention: expected the {} on {}, where the "
        "query is, but got {}",
        what,
        query.device(),
        tensor.device());
  };
  if (options.mask().defined()) {
    checks::check_dense(detail::kAttentionName, "mask", options.mask());
    TORCH_ATTENTION_CHECK(
        options.mask().scalar_type() == torch::kBool,
        "scaled_dot_product_attention: expected a bool mask (true hides), "
        "but got {}; convert it with .to(torch::kBool), or pass what is to "
        "be added to the scores as `bias`",
        options.mask().scalar_type());
    check_device("mask", options.mask());
    check_broadcasts_to_scores("mask", options.mask(), scores);
  }
  if (options.bias().defined()) {
    checks::check_dense(detail::kAttentionName, "bias", options.bias());
    TORCH_CHECK(
        options.bias().scalar_type() != torch::kBool,
        "scaled_dot_product_attention: expected a floating-point bias, but "
        "got Bool; pass a bool mask as `mask`");
    checks::check_floating(
        detail::kAttentionName, "a ", "bias", options.bias());
    check_device("bias", options.bias());
    check_broadcasts_to_scores("bias", options.bias(), scores);
  }
}

/// Checks that the block mask is for the scores (..., T, S). `without_batch`:
/// those of three dimensions are (H, T, S).
void check_block_mask(
    const BlockMask& mask,
    torch::IntArrayRef scores,
    bool without_batch = false) {
  if (!mask.defined()) {
    return;
  }
  TORCH_CHECK(
      !kernels::is_traced(),
      "scaled_dot_product_attention: expected no block_mask in a trace, which "
      "would keep this mask for all inputs");
  const auto dim = scores.size();
  const auto fits = [](int64_t size, int64_t all) {
    return size == 1 || size == all;
  };
  int64_t B = 1;
  int64_t H = 1;
  if (dim == 3) {
    (without_batch ? H : B) = scores[0];
  } else if (dim == 4) {
    B = scores[0];
    H = scores[1];
  }
  TORCH_ATTENTION_CHECK(
      dim >= 2 && dim <= 4 && fits(mask.batch_size(), B) &&
          fits(mask.num_heads(), H) && mask.num_queries() == scores[dim - 2] &&
          mask.num_keys() == scores[dim - 1],
      "scaled_dot_product_attention: expected a block_mask for the scores {}, "
      "each of its sequences and heads or 1, but got one for {}",
      scores,
      torch::IntArrayRef(
          {mask.batch_size(),
           mask.num_heads(),
           mask.num_queries(),
           mask.num_keys()}));
}

void check_tensors(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value) {
  const auto check_one = [&](const char* what, const torch::Tensor& tensor) {
    TORCH_ATTENTION_CHECK(
        tensor.defined(),
        "scaled_dot_product_attention: the {} is undefined",
        what);
    checks::check_dense(detail::kAttentionName, what, tensor);
    TORCH_ATTENTION_CHECK(
        tensor.dim() >= 2,
        "scaled_dot_product_attention: expected a {} of shape (..., "
        "tokens, head_dim), but got {}",
        what,
        tensor.sizes());
    checks::check_floating(detail::kAttentionName, "a ", what, tensor);
    TORCH_ATTENTION_CHECK(
        tensor.device() == query.device() &&
            tensor.scalar_type() == query.scalar_type(),
        "scaled_dot_product_attention: expected query, key and value of "
        "one dtype on one device, but got query {} on {}, {} {} on {}",
        query.scalar_type(),
        query.device(),
        what,
        tensor.scalar_type(),
        tensor.device());
  };
  check_one("query", query);
  check_one("key", key);
  check_one("value", value);
  TORCH_ATTENTION_CHECK(
      query.size(-1) == key.size(-1) && query.size(-1) > 0,
      "scaled_dot_product_attention: expected query and key of the same "
      "head_dim > 0, but got query {}, key {}",
      query.sizes(),
      key.sizes());
  TORCH_ATTENTION_CHECK(
      key.size(-2) == value.size(-2),
      "scaled_dot_product_attention: expected as many keys as values, "
      "but got key {}, value {}",
      key.sizes(),
      value.sizes());
}

/// Expands query, key and value to the same leading dimensions; without the
/// dimension of heads if key heads are `shared`.
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
    TORCH_ATTENTION_CHECK(
        false,
        "scaled_dot_product_attention: expected leading dimensions that "
        "broadcast, but got query {}, key {}, value {}",
        a.query.sizes(),
        a.key.sizes(),
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

/// Materialises a ZeroTensor, with which LibTorch's fused kernel would return
/// an uninitialised output.
void give_memory(torch::Tensor& x) {
  if (x.defined() && x._is_zerotensor()) {
    x = x + at::zeros({}, x.options());
  }
}

void check_shared_heads(const kernels::Attention& a) {
  TORCH_ATTENTION_CHECK(
      a.query.dim() >= 3 && a.key.dim() >= 3 && a.value.dim() >= 3 &&
          a.key.size(-3) == a.value.size(-3) && a.key.size(-3) > 0 &&
          a.query.size(-3) % a.key.size(-3) == 0,
      "scaled_dot_product_attention: expected, with enable_gqa, query "
      "(..., H, T, D) and key and value (..., G, S, D) with H divisible "
      "by G, but got query {}, key {}, value {}",
      a.query.sizes(),
      a.key.sizes(),
      a.value.sizes());
}

/// Checks one integer per sequence, and returns them as int64 on the device of
/// `query`.
torch::Tensor counts_for_batch(
    const char* what,
    const torch::Tensor& counts,
    const torch::Tensor& query,
    int64_t B) {
  if (!counts.defined()) {
    return counts;
  }
  checks::check_has_numbers(
      detail::kAttentionName, what, counts, query.device());
  TORCH_ATTENTION_CHECK(
      query.dim() == 3 || query.dim() == 4,
      "scaled_dot_product_attention: expected, with {}, a query of shape "
      "(B, T, D) or (B, H, T, D), but got {}",
      what,
      query.sizes());
  TORCH_ATTENTION_CHECK(
      checks::has_integers(counts) && counts.dim() == 1 && counts.size(0) == B,
      "scaled_dot_product_attention: expected {} of an integer dtype and "
      "shape (B) = [{}], but got {} of shape {}",
      what,
      B,
      counts.scalar_type(),
      counts.sizes());
  return kernels::sent_to(query.device(), checks::to_int64(counts));
}

/// Checks one number per head, and returns them on the device of `query`, in
/// float32 or float64.
torch::Tensor numbers_for_heads(
    const char* what,
    const torch::Tensor& numbers,
    const torch::Tensor& query) {
  if (!numbers.defined()) {
    return numbers;
  }
  TORCH_ATTENTION_CHECK(
      query.dim() == 4,
      "scaled_dot_product_attention: expected, with {}, a query of shape "
      "(B, H, T, D), but got {}",
      what,
      query.sizes());
  checks::check_has_numbers(
      detail::kAttentionName, what, numbers, query.device());
  TORCH_ATTENTION_CHECK(
      numbers.is_floating_point() && numbers.dim() == 1 &&
          numbers.size(0) == query.size(1),
      "scaled_dot_product_attention: expected floating-point {} of shape "
      "(H) = [{}], but got {} of shape {}",
      what,
      query.size(1),
      numbers.scalar_type(),
      numbers.sizes());
  return kernels::sent_to(
      query.device(), numbers.to(kernels::compute_dtype(query.scalar_type())));
}

/// Returns the caller's function with checks of its result. `without_batch`:
/// removes the batch dimension that was added to the query, and adds it again.
std::function<torch::Tensor(const torch::Tensor&)> checked_function(
    const char* what,
    const std::function<torch::Tensor(const torch::Tensor&)>& function,
    bool without_batch = false) {
  if (!function) {
    return function;
  }
  return [what, function, without_batch](const torch::Tensor& x) {
    const auto input = without_batch ? x.squeeze(0) : x;
    const auto changed = function(input);
    TORCH_ATTENTION_CHECK(
        changed.defined(),
        "scaled_dot_product_attention: the tensor that `{}` gave is undefined",
        what);
    checks::check_dense(
        detail::kAttentionName,
        c10::str("tensor that `", what, "` gave").c_str(),
        changed);
    TORCH_ATTENTION_CHECK(
        changed.sizes() == input.sizes() &&
            changed.scalar_type() == input.scalar_type() &&
            changed.device() == input.device(),
        "scaled_dot_product_attention: expected `{}` to give what it gets, "
        "{} of shape {} on {}, but got {} of shape {} on {}",
        what,
        input.scalar_type(),
        input.sizes(),
        input.device(),
        changed.scalar_type(),
        changed.sizes(),
        changed.device());
    return without_batch ? changed.unsqueeze(0) : changed;
  };
}

/// Returns the arguments of the kernels that do not depend on the query, except
/// dropout.
kernels::Attention attention_of(const Options& options) {
  checks::check_rule(detail::kAttentionName, options.rule());
  kernels::Attention attention;
  attention.rule = options.rule();
  attention.mask = options.mask();
  attention.block_mask = options.block_mask().packed();
  attention.bias = options.bias();
  attention.score_function = checked_function("scores", options.scores());
  attention.weight_function = checked_function("weights", options.weights());
  return attention;
}

/// Returns whether the last of T queries of each sequence is known to see the
/// last of its keys, of which there are at most S. Looks at lengths on the CPU
/// only: reading others would wait for the device.
bool end_at_lengths(const Options& options, int64_t T, int64_t S) {
  const auto& lengths = options.key_lengths();
  const auto& offsets = options.query_offsets();
  const auto is_known = [](const torch::Tensor& x) {
    return x.defined() && kernels::is_plain(x) && checks::has_integers(x);
  };
  if (!is_known(lengths) || !is_known(offsets)) {
    return false;
  }
  const auto ends = checks::to_int64(lengths);
  const auto begins = checks::to_int64(offsets);
  return ends.equal(begins + T) && ends.le(S).all().item<bool>() &&
      begins.ge(0).all().item<bool>();
}

/// Sets lengths and offsets of B sequences for scores (..., T, S).
void set_counts(
    kernels::Attention& attention,
    const Options& options,
    const torch::Tensor& x,
    int64_t B,
    int64_t S) {
  attention.key_lengths =
      counts_for_batch("key_lengths", options.key_lengths(), x, B);
  const auto T = x.size(-2);
  // Our own kernels on the CPU do not ask.
  attention.ends_at_lengths = !x.is_cpu() && end_at_lengths(options, T, S);
  // Another copy to the device is saved.
  attention.query_offsets = attention.ends_at_lengths
      ? attention.key_lengths - T
      : counts_for_batch("query_offsets", options.query_offsets(), x, B);
}

/// Sets the tensors with one number for each of B sequences or for each head.
/// `x` has the leading dimensions of the query, and scores for S keys.
void set_numbers(
    kernels::Attention& attention,
    const Options& options,
    const torch::Tensor& x,
    int64_t B,
    int64_t S) {
  set_counts(attention, options, x, B, S);
  attention.alibi_slopes =
      numbers_for_heads("alibi_slopes", options.alibi_slopes(), x);
  attention.sinks = numbers_for_heads("sinks", options.sinks(), x);
}

/// Checks the shapes of packed sequences: `query` as passed by the caller, `a`
/// after broadcasting.
void check_packed(const kernels::Attention& a, const torch::Tensor& query) {
  TORCH_ATTENTION_CHECK(
      a.query.dim() == query.dim() &&
          (query.dim() == 3 || (query.dim() == 4 && a.query.size(0) == 1)),
      "scaled_dot_product_attention: expected, with cu_seqlens, query, "
      "key and value of shape (1, H, N, D) or (H, N, D), but got query "
      "{}, key {}, value {}",
      query.sizes(),
      a.key.sizes(),
      a.value.sizes());
}

/// Sets the starts of packed sequences. Returns the sizes of the scores of the
/// padded batch, (B, H, longest T, longest S).
std::vector<int64_t> set_starts(
    kernels::Attention& attention,
    const Options& options) {
  const auto& queries = options.cu_seqlens();
  const auto& keys = options.cu_seqlens_k();
  attention.query_starts = checks::to_starts(
      detail::kAttentionName, "cu_seqlens", queries, attention.query.size(-2));
  attention.key_starts = checks::to_starts(
      detail::kAttentionName,
      keys.defined() ? "cu_seqlens_k" : "cu_seqlens",
      keys.defined() ? keys : queries,
      attention.key.size(-2));
  const auto count = attention.query_starts.size(0);
  TORCH_ATTENTION_CHECK(
      attention.key_starts.size(0) == count,
      "scaled_dot_product_attention: expected cu_seqlens_k of as many "
      "sequences as cu_seqlens has, {}, but got {}",
      count - 1,
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

kernels::Attention checked_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Options& options) {
  check_tensors(query, key, value);
  checks::check_dropout(detail::kAttentionName, options.dropout());
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
      "scaled_dot_product_attention: expected cu_seqlens beside "
      "cu_seqlens_k");
  if (options.cu_seqlens().defined()) {
    check_packed(attention, query);
    scores = set_starts(attention, options);
    num_sequences = scores.front();
  }
  if (lacks_batch(options, query)) {
    // Mask and bias broadcast along the added dimension.
    const bool without_batch = !options.cu_seqlens().defined();
    attention.score_function =
        checked_function("scores", options.scores(), without_batch);
    attention.weight_function =
        checked_function("weights", options.weights(), without_batch);
    for (auto* x : {&attention.query, &attention.key, &attention.value}) {
      *x = x->unsqueeze(0);
    }
  }
  set_numbers(attention, options, attention.query, num_sequences, key.size(-2));
  check_mask_and_bias(options, query, scores);
  check_block_mask(
      options.block_mask(), scores, detail::lacks_batch(options, query));
  for (auto* x : kernels::tensors_of(attention)) {
    give_memory(*x);
  }
  return attention;
}

void check_score_tensors(
    const Options& options,
    const torch::Tensor& x,
    torch::IntArrayRef scores) {
  check_mask_and_bias(options, x, scores);
  counts_for_batch("key_lengths", options.key_lengths(), x, scores.front());
}

kernels::Attention checked_options(
    const Options& options,
    const torch::Tensor& scores) {
  auto attention = attention_of(options);
  check_mask_and_bias(options, scores, scores.sizes());
  check_block_mask(options.block_mask(), scores.sizes());
  set_numbers(attention, options, scores, scores.size(0), scores.size(-1));
  return attention;
}

} // namespace detail

} // namespace torch_attention::functional
