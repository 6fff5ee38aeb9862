#include <torch_attention/nn/modules/cross_attention.h>

#include <check.h>
#include <nn/cache_state.h>
#include <nn/checks.h>
#include <nn/functional/checked_attention.h>
#include <nn/modules/call.h>
#include <nn/modules/decode.h>
#include <nn/modules/head_norm.h>
#include <nn/modules/heads.h>
#include <nn/modules/partition.h>
#include <torch_attention/nn/functional/attention.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

namespace torch_attention {

namespace {

using FuncOptions = functional::ScaledDotProductAttentionFuncOptions;

constexpr const char* kCross = "CrossAttention";

void check_input(const CrossAttentionImpl& module, const torch::Tensor& x) {
  checks::check_input(kCross, x, module.W_query->weight, module.options.d_in());
  detail::check_projection(
      kCross,
      "W_query",
      module.W_query,
      module.options.num_heads(),
      module.head_dim);
}

void check_context(
    const CrossAttentionImpl& module,
    const torch::Tensor& context) {
  checks::check_sequences(
      kCross,
      "context",
      "d_context",
      context,
      module.W_key->weight,
      module.options.d_context());
  detail::check_projection(
      kCross,
      "W_key",
      module.W_key,
      detail::num_kv_heads(module.options),
      module.head_dim);
}

torch::Tensor queries_of(
    CrossAttentionImpl& module,
    const torch::Tensor& x,
    Kernel kernel) {
  const auto queries = detail::project_to_heads(
      module.W_query, x, module.options.num_heads(), kernel);
  return module.q_norm.is_empty()
      ? queries
      : detail::normalised(*module.q_norm, queries, kernel);
}

/// Projects the context to heads, by `W_key` or `W_value`.
torch::Tensor context_heads(
    const CrossAttentionImpl& module,
    const torch::nn::Linear& projection,
    const torch::Tensor& context,
    Kernel kernel) {
  return detail::project_to_key_heads(
      projection,
      context,
      detail::num_kv_heads(module.options),
      kernel,
      *detail::PartitionAccess::of(module));
}

torch::Tensor keys_of(
    CrossAttentionImpl& module,
    const torch::Tensor& context,
    Kernel kernel) {
  const auto keys = context_heads(module, module.W_key, context, kernel);
  return module.k_norm.is_empty()
      ? keys
      : detail::normalised(*module.k_norm, keys, kernel);
}

/// Projects the context, or `value_input` if it is defined, to values.
torch::Tensor values_of(
    const CrossAttentionImpl& module,
    const torch::Tensor& context,
    const torch::Tensor& value_input,
    Kernel kernel) {
  return context_heads(
      module,
      module.W_value,
      value_input.defined() ? value_input : context,
      kernel);
}

FuncOptions func_options_of(
    const CrossAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& whole_call,
    const detail::CallSizes& sizes,
    const detail::Partition& partition) {
  // Options may have changed since the module was made.
  checks::check_rule_without_positions(kCross, module.options.rule());
  auto options = detail::head_options(module);
  auto call = detail::own_heads(kCross, whole_call, partition);
  // The projection reads it.
  call.value_input(torch::Tensor());
  if (detail::is_empty(call)) {
    return options;
  }
  const std::vector<int64_t> scores = {
      sizes.B, module.options.num_heads(), sizes.T, sizes.S};
  detail::set_call(kCross, call, scores, options);
  if (!partition.is_whole()) {
    // Checked here already, before other processes wait for this one.
    functional::detail::check_score_tensors(options, x, scores);
  }
  return options;
}

void check_decode(
    const CrossAttentionImpl& module,
    const torch::Tensor& x,
    const KVCache& cache,
    const ForwardOptions& call,
    const detail::Partition& partition) {
  check_input(module, x);
  partition.check_call(kCross, call);
  TORCH_CHECK(
      !call.value_input().defined(),
      "CrossAttention: expected no value_input for decode, since the cache has "
      "the values; make_cache takes it");
  TORCH_CHECK(
      !call.cu_seqlens().defined() && !call.cu_seqlens_k().defined(),
      "CrossAttention: expected tokens (B, T, d_in) for decode, but got "
      "cu_seqlens");
  detail::check_cache(kCross, module, x, cache.options());
  detail::check_cache_part(
      kCross, cache.options(), /*num_parts=*/1, /*part=*/0);
  detail::check_drops_nothing(kCross, module);
  const auto& has = cache.options();
  TORCH_ATTENTION_CHECK(
      !has.window() && !has.chunk(),
      "CrossAttention: expected a cache that keeps all tokens, but got "
      "one of {}{}",
      has.chunk() ? "chunk = " : "window = ",
      has.chunk().value_or(has.window().value_or(0)));
}

/// Returns the number of context tokens that this process stores in `cache`.
int64_t own_context(const KVCache& cache, const detail::Partition& partition) {
  if (partition.num_context_parts() == 1) {
    return detail::CacheState::num_rows(cache);
  }
  TORCH_CHECK(
      cache.options().max_length().has_value(),
      "CrossAttention: expected a cache of make_cache, where several "
      "processes share the context");
  return *cache.options().max_length();
}

/// Returns the options of functional attention for `decode`, for the keys in
/// `cache`.
FuncOptions decode_options(
    const CrossAttentionImpl& module,
    const torch::Tensor& x,
    const KVCache& cache,
    const ForwardOptions& call,
    const detail::Partition& partition) {
  const auto num_own = own_context(cache, partition);
  const auto S = num_own * partition.num_context_parts();
  const auto num_rows = detail::CacheState::num_rows(cache);
  auto func =
      func_options_of(module, x, call, {x.size(0), x.size(1), S}, partition)
          .kernel(module.options.kernel());
  const auto of_rows = [&](const torch::Tensor& scores) {
    const auto own = partition.own_keys(scores, num_own);
    return own.defined() && own.size(-1) != 1 ? own.narrow(-1, 0, num_rows)
                                              : own;
  };
  func.mask(of_rows(func.mask()));
  func.bias(of_rows(func.bias()));
  const auto key_lengths = partition.own_lengths(
      checks::to_counts(
          kCross, "key_lengths", call.key_lengths(), x.size(0), S),
      num_own);
  if (key_lengths.defined()) {
    func.key_lengths(key_lengths);
  }
  const auto lengths = cache.lengths();
  const auto* begin = lengths.const_data_ptr<int64_t>();
  const bool padded = std::any_of(
      begin, begin + lengths.numel(), [&](int64_t n) { return n != num_rows; });
  if (padded) {
    func.key_lengths(
        key_lengths.defined() ? lengths.minimum(key_lengths) : lengths);
  }
  return func;
}

/// Describes the arguments of `decode` that have to be equal in all processes.
std::string describe_decode(
    const KVCache& cache,
    const ForwardOptions& call,
    const detail::Partition& partition) {
  const auto parts = partition.num_context_parts();
  return c10::str(
      " to a context of ",
      own_context(cache, partition) * parts,
      " tokens in ",
      cache.options().dtype(),
      parts == 1 ? detail::text_of_counts(" of lengths ", cache.lengths()) : "",
      detail::text_of("key_lengths", call.key_lengths()),
      detail::text_of("key_padding_mask", call.key_padding_mask()),
      detail::text_of("mask", call.mask()),
      detail::text_of("bias", call.bias()));
}

/// Checks what values are projected from instead of the context.
void check_values(
    const CrossAttentionImpl& module,
    const torch::Tensor& context,
    const torch::Tensor& value_input) {
  detail::check_value_input(
      kCross,
      value_input,
      module.options.needs_value_input(),
      "context",
      context,
      module.W_value->weight);
}

/// Checks a call of `forward`, and returns the options of functional attention
/// except the kernel.
FuncOptions check_call(
    const CrossAttentionImpl& module,
    const torch::Tensor& x,
    const torch::Tensor& context,
    const ForwardOptions& call,
    const detail::Partition& partition) {
  check_input(module, x);
  check_context(module, context);
  check_values(module, context, call.value_input());
  partition.check_call(kCross, call);
  TORCH_ATTENTION_CHECK(
      x.size(0) == context.size(0),
      "CrossAttention: expected a context of as many sequences as the "
      "input has, {}, but got {}",
      x.size(0),
      context.size(0));
  auto sizes = detail::call_sizes(kCross, x, context, call);
  sizes.S *= partition.num_context_parts();
  return func_options_of(module, x, call, sizes, partition);
}

/// Checks a call of `make_cache`. Returns `lengths`, the number of tokens of
/// each sequence of the context, as int64; undefined: all.
torch::Tensor check_lengths(
    const CrossAttentionImpl& module,
    const torch::Tensor& context,
    const torch::Tensor& lengths,
    const detail::Partition& partition) {
  check_context(module, context);
  checks::check_positive(kCross, "sequences of the context", context.size(0));
  return checks::to_counts(
      kCross,
      "lengths",
      lengths,
      context.size(0),
      context.size(1) * partition.num_context_parts());
}

Projected project_heads(
    CrossAttentionImpl& module,
    const detail::PartitionInput& input,
    Kernel kernel) {
  Projected projected;
  // Keys first, as in the Python classes.
  projected.keys = keys_of(module, input.context, kernel);
  projected.queries = queries_of(module, input.x, kernel);
  projected.values =
      values_of(module, input.context, input.value_input, kernel);
  return projected;
}

} // namespace

CrossAttentionImpl::CrossAttentionImpl(
    int64_t d_in,
    int64_t d_context,
    int64_t d_out,
    int64_t num_heads)
    : CrossAttentionImpl(
          CrossAttentionOptions(d_in, d_context, d_out, num_heads)) {}

CrossAttentionImpl::CrossAttentionImpl(const CrossAttentionOptions& options_)
    : options(options_), partition_(detail::whole_partition()) {
  CrossAttentionImpl::reset();
}

void CrossAttentionImpl::reset() {
  detail::check_heads(kCross, options);
  checks::check_rule_without_positions(kCross, options.rule());
  checks::check_positive(kCross, "d_context", options.d_context());
  TORCH_CHECK(
      !options.qk_norm() || !options.qk_norm()->after_rotary(),
      "CrossAttention: expected a qk_norm with after_rotary = false, "
      "since it has no rotary embedding");
  detail::reset_heads(*this, options.d_context());
}

void CrossAttentionImpl::reset_parameters() {
  detail::reset_parameters_of_heads(kCross, *this);
}

void CrossAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::CrossAttention(d_in=" << options.d_in()
         << ", d_context=" << options.d_context()
         << ", d_out=" << options.d_out();
  detail::print_heads(stream, options);
  stream << ", dropout=" << options.dropout() << ", qkv_bias=" << std::boolalpha
         << options.qkv_bias();
  if (options.needs_value_input()) {
    stream << ", needs_value_input=true";
  }
  stream << ", kernel=" << options.kernel() << ")";
}

torch::Tensor CrossAttentionImpl::forward(
    const torch::Tensor& x,
    const torch::Tensor& context,
    const ForwardOptions& call) {
  if (detail::lacks_batch(x, call) && context.defined()) {
    return forward(
               x.unsqueeze(0),
               context.dim() == 2 ? context.unsqueeze(0) : context,
               detail::with_batch(call))
        .squeeze(0);
  }
  FuncOptions func;
  const auto input = partition_->enter(
      {kCross,
       x,
       context,
       [&] { func = check_call(*this, x, context, call, *partition_); },
       [&] { return detail::describe_learned(call); },
       /*exchanges_length=*/false,
       call.value_input()});
  // Queries, keys and values are a temporary, so that they are freed before the
  // output is allocated.
  const auto result = partition_->attend_to_context(
      project_heads(*this, input, options.kernel()),
      func.kernel(options.kernel()));
  input.wait();
  return detail::project_out(*this, result, options.kernel(), *partition_);
}

std::tuple<torch::Tensor, torch::Tensor> CrossAttentionImpl::
    forward_with_weights(
        const torch::Tensor& x,
        const torch::Tensor& context,
        const ForwardOptions& call) {
  // All processes refuse it, so none may wait for another one.
  TORCH_CHECK(
      partition_->num_token_parts() == 1 ||
          (partition_->num_context_parts() == 1 &&
           !detail::drops_weights(*this)),
      "CrossAttention: forward_with_weights needs the whole context, of "
      "which other processes have some (sequence_parallel), and no "
      "dropout");
  const auto& partition = partition_->of_context();
  FuncOptions func;
  const auto check = [&] {
    checks::check_not_packed(kCross, call.cu_seqlens());
    func = check_call(*this, x, context, call, partition);
  };
  const auto input = partition.enter(
      {kCross,
       x,
       context,
       check,
       [&] { return detail::describe_learned(call); },
       /*exchanges_length=*/false,
       call.value_input()});
  const auto heads = project_heads(*this, input, Kernel::kReference);
  const auto [result, weights] = partition.attend_with_weights(heads, func);
  input.wait();
  return {
      detail::project_out(*this, result, Kernel::kReference, partition),
      weights};
}

KVCache CrossAttentionImpl::make_cache(
    const torch::Tensor& context,
    const torch::Tensor& lengths,
    const torch::Tensor& value_input) {
  const torch::NoGradGuard no_grad;
  const auto& partition = partition_->of_context();
  torch::Tensor counts;
  const auto input = partition.enter_cached(
      {kCross,
       context,
       /*context=*/{},
       [&] {
         counts = check_lengths(*this, context, lengths, partition);
         check_values(*this, context, value_input);
       },
       [&] { return detail::text_of_counts(" of lengths ", counts); },
       /*exchanges_length=*/false,
       value_input});
  const auto S = context.size(1);
  KVCache cache(detail::cache_options(*this, context.size(0))
                    .max_length(std::max<int64_t>(S, 1))
                    .block(std::max<int64_t>(S, 1)));
  cache.append(
      keys_of(*this, input.x, options.kernel()),
      values_of(*this, input.x, input.value_input, options.kernel()),
      partition.own_lengths(counts, S));
  input.wait();
  return cache;
}

torch::Tensor CrossAttentionImpl::decode(
    const torch::Tensor& x,
    const KVCache& cache,
    const ForwardOptions& call) {
  const torch::NoGradGuard no_grad;
  const auto& partition = partition_->of_context();
  FuncOptions func;
  const auto check = [&] {
    check_decode(*this, x, cache, call, partition);
    func = decode_options(*this, x, cache, call, partition);
  };
  const auto input =
      partition.enter_cached({kCross, x, /*context=*/{}, check, [&] {
                                return describe_decode(cache, call, partition);
                              }});
  const auto queries = queries_of(*this, input.x, options.kernel());
  input.wait();
  const auto result = partition.attend_to_context_cache(queries, cache, func);
  return detail::project_out(*this, result, options.kernel(), partition);
}

} // namespace torch_attention
