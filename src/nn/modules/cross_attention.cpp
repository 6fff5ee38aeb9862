#include <torch_attention/nn/modules/cross_attention.h>

#include <nn/checks.h>
#include <nn/functional/attention_of_call.h>
#include <nn/modules/call.h>
#include <nn/modules/head_norm.h>
#include <nn/modules/head_split.h>
#include <nn/modules/heads.h>
#include <nn/modules/token_split.h>
#include <torch_attention/nn/functional/attention.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <ostream>

namespace torch_attention {

namespace {

using FuncOptions = functional::ScaledDotProductAttentionFuncOptions;

constexpr const char* kCross = "CrossAttention";

void check_input(const CrossAttentionImpl& module, const torch::Tensor& x) {
  checks::check_input(kCross, x, module.W_query->weight, module.options.d_in());
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

torch::Tensor keys_of(
    CrossAttentionImpl& module,
    const torch::Tensor& context,
    Kernel kernel,
    const detail::HeadSplitPointer& split) {
  const auto keys = detail::project_to_key_heads(
      module.W_key,
      context,
      detail::num_kv_heads(module.options),
      kernel,
      split);
  return module.k_norm.is_empty()
      ? keys
      : detail::normalised(*module.k_norm, keys, kernel);
}

torch::Tensor values_of(
    CrossAttentionImpl& module,
    const torch::Tensor& context,
    Kernel kernel,
    const detail::HeadSplitPointer& split) {
  return detail::project_to_key_heads(
      module.W_value,
      context,
      detail::num_kv_heads(module.options),
      kernel,
      split);
}

FuncOptions func_options_of(
    const CrossAttentionImpl& module,
    const ForwardOptions& whole_call,
    const detail::CallSizes& sizes,
    const detail::HeadSplitPointer& split) {
  auto options = detail::head_options(module);
  const auto call = detail::own_heads(kCross, whole_call, split);
  if (!detail::is_empty(call)) {
    detail::set_call(
        kCross,
        call,
        {sizes.B, module.options.num_heads(), sizes.T, sizes.S},
        options);
  }
  return options;
}

/// Returns the number of processes that share the context.
int64_t processes_of(const detail::TokenSplitPointer& split) {
  return split == nullptr || split->whole_context ? 1 : split->num_processes;
}

/// Returns the split, or nullptr if none shares the context.
const detail::TokenSplit* parts_of(const detail::TokenSplitPointer& split) {
  return processes_of(split) > 1 ? split.get() : nullptr;
}

/// The processes that share heads or tokens, if any.
struct Splits {
  const detail::HeadSplitPointer& heads;
  const detail::TokenSplitPointer& tokens;
};

void check_decode(
    const CrossAttentionImpl& module,
    const torch::Tensor& x,
    const KVCache& cache,
    const ForwardOptions& call) {
  check_input(module, x);
  TORCH_CHECK(
      !call.cu_seqlens().defined() && !call.cu_seqlens_k().defined(),
      kCross,
      ": expected tokens (B, T, d_in) for decode, but got cu_seqlens");
  detail::check_cache(kCross, module, x, cache);
  detail::check_part(kCross, cache);
  detail::check_drops_nothing(kCross, module);
  const auto& has = cache.options();
  TORCH_CHECK(
      !has.window() && !has.chunk(),
      kCross,
      ": expected a cache that keeps all tokens, but got one of ",
      has.chunk() ? "chunk = " : "window = ",
      has.chunk().value_or(has.window().value_or(0)));
}

/// Returns the number of tokens of the context in `cache`, of which other
/// processes may have some.
int64_t context_of(const KVCache& cache, const detail::TokenSplit* split) {
  if (split == nullptr) {
    return cache.keys().size(2);
  }
  TORCH_CHECK(
      cache.options().max_length().has_value(),
      kCross,
      ": expected a cache of make_cache, where several processes share the "
      "context");
  return *cache.options().max_length() * split->num_processes;
}

/// A mask or bias of all keys, for those in `cache`.
torch::Tensor of_own_keys(
    const torch::Tensor& x,
    const KVCache& cache,
    const detail::TokenSplit& split) {
  return x.defined() && x.size(-1) != 1
      ? x.index_select(-1, split.positions(*cache.options().max_length()))
            .narrow(-1, 0, cache.keys().size(2))
      : x;
}

/// The options of functional attention for `decode`, to the keys in `cache`.
FuncOptions decode_options(
    const CrossAttentionImpl& module,
    const torch::Tensor& x,
    const KVCache& cache,
    const ForwardOptions& call,
    const Splits& splits) {
  const auto* split = parts_of(splits.tokens);
  const auto S = context_of(cache, split);
  const auto num_own = cache.keys().size(2);
  auto func =
      func_options_of(module, call, {x.size(0), x.size(1), S}, splits.heads)
          .kernel(module.options.kernel());
  auto asked = checks::to_counts(
      kCross, "key_lengths", call.key_lengths(), x.size(0), S);
  if (split != nullptr) {
    func.mask(of_own_keys(func.mask(), cache, *split));
    func.bias(of_own_keys(func.bias(), cache, *split));
    if (asked.defined()) {
      asked = detail::own_lengths(*split, asked, *cache.options().max_length());
      func.key_lengths(asked);
    }
  }
  const auto lengths = cache.lengths();
  const auto* begin = lengths.const_data_ptr<int64_t>();
  const bool padded = std::any_of(
      begin, begin + lengths.numel(), [&](int64_t n) { return n != num_own; });
  if (padded) {
    func.key_lengths(asked.defined() ? lengths.minimum(asked) : lengths);
  }
  return func;
}

/// The inputs of functional attention.
struct Operands {
  torch::Tensor queries;
  torch::Tensor keys;
  torch::Tensor values;
  FuncOptions options;
  detail::Entered entered;
};

Operands operands_of(
    CrossAttentionImpl& module,
    const torch::Tensor& x,
    const torch::Tensor& context,
    const ForwardOptions& call,
    Kernel kernel,
    const Splits& splits) {
  const auto& split = splits.heads;
  FuncOptions options;
  detail::check_together(kCross, x, split, splits.tokens, [&] {
    check_input(module, x);
    check_context(module, context);
    TORCH_CHECK(
        splits.tokens == nullptr || !call.cu_seqlens().defined(),
        kCross,
        ": expected no cu_seqlens, where several processes share the tokens");
    TORCH_CHECK(
        x.size(0) == context.size(0),
        kCross,
        ": expected a context of as many sequences as the input has, ",
        x.size(0),
        ", but got ",
        context.size(0));
    auto sizes = detail::sizes_of_call(kCross, x, context, call);
    sizes.S *= processes_of(splits.tokens);
    options = func_options_of(module, call, sizes, split);
  });
  Operands operands{{}, {}, {}, options, {kCross, x, context, split}};
  const auto& entered = operands.entered;
  operands.keys = keys_of(module, entered.context, kernel, split);
  operands.queries = queries_of(module, entered.x, kernel);
  operands.values = values_of(module, entered.context, kernel, split);
  return operands;
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
    : options(options_) {
  CrossAttentionImpl::reset();
}

void CrossAttentionImpl::reset() {
  detail::check_heads(kCross, options);
  checks::check_positive(kCross, "d_context", options.d_context());
  TORCH_CHECK(
      !options.qk_norm() || !options.qk_norm()->after_rotary(),
      kCross,
      ": expected a qk_norm with after_rotary = false, since it has no rotary "
      "embedding");
  detail::reset_heads(*this, options.d_context());
}

void CrossAttentionImpl::reset_parameters() {
  detail::reset_parameters_of_heads(*this);
}

void CrossAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::CrossAttention(d_in=" << options.d_in()
         << ", d_context=" << options.d_context()
         << ", d_out=" << options.d_out();
  detail::print_heads(stream, options);
  stream << ", dropout=" << options.dropout() << ", qkv_bias=" << std::boolalpha
         << options.qkv_bias() << ", kernel=" << options.kernel() << ")";
}

torch::Tensor CrossAttentionImpl::forward(
    const torch::Tensor& x,
    const torch::Tensor& context,
    const ForwardOptions& call) {
  if (detail::lacks_batch(x, call) && context.defined()) {
    return forward(
               x.unsqueeze(0),
               context.dim() == 2 ? context.unsqueeze(0) : context,
               call)
        .squeeze(0);
  }
  const auto kernel = options.kernel();
  const auto attend = [&] {
    const auto operands =
        operands_of(*this, x, context, call, kernel, {split_, token_split_});
    if (token_split_ != nullptr) {
      return token_split_->attend_to_context(
          operands.queries,
          operands.keys,
          operands.values,
          FuncOptions(operands.options).kernel(kernel));
    }
    auto result = functional::detail::attend(
        operands.queries,
        operands.keys,
        operands.values,
        FuncOptions(operands.options).kernel(kernel),
        detail::heads_of(split_));
    operands.entered.wait();
    return result;
  };
  // Queries, keys and values are freed before there is an output.
  return detail::project_out(*this, attend(), kernel, split_);
}

std::tuple<torch::Tensor, torch::Tensor> CrossAttentionImpl::
    forward_with_weights(
        const torch::Tensor& x,
        const torch::Tensor& context,
        const ForwardOptions& call) {
  checks::check_not_packed(kCross, call.cu_seqlens());
  TORCH_CHECK(
      token_split_ == nullptr ||
          (token_split_->whole_context && !detail::drops_weights(*this)),
      kCross,
      ": forward_with_weights needs the whole context, of which other processes "
      "have some (sequence_parallel), and no dropout");
  // Nothing is sent.
  const detail::TokenSplitPointer alone;
  const auto operands =
      operands_of(*this, x, context, call, Kernel::kReference, {split_, alone});
  const auto [result, weights] = functional::detail::attend_with_weights(
      operands.queries,
      operands.keys,
      operands.values,
      operands.options,
      detail::heads_of(split_));
  operands.entered.wait();
  return {
      detail::project_out(*this, result, Kernel::kReference, split_), weights};
}

KVCache CrossAttentionImpl::make_cache(
    const torch::Tensor& context,
    const torch::Tensor& lengths) {
  const torch::NoGradGuard no_grad;
  check_context(*this, context);
  checks::check_positive(kCross, "sequences of the context", context.size(0));
  const auto S = context.size(1);
  const auto* split = parts_of(token_split_);
  auto counts = checks::to_counts(
      kCross,
      "lengths",
      lengths,
      context.size(0),
      S * processes_of(token_split_));
  if (split != nullptr && counts.defined()) {
    counts = detail::own_lengths(*split, counts, S);
  }
  KVCache cache(detail::cache_options(*this, context.size(0))
                    .max_length(std::max<int64_t>(S, 1))
                    .block(std::max<int64_t>(S, 1)));
  cache.append(
      keys_of(*this, context, options.kernel(), split_),
      values_of(*this, context, options.kernel(), split_),
      counts);
  return cache;
}

torch::Tensor CrossAttentionImpl::decode(
    const torch::Tensor& x,
    const KVCache& cache,
    const ForwardOptions& call) {
  const torch::NoGradGuard no_grad;
  const auto* split = parts_of(token_split_);
  FuncOptions func;
  const auto wait = detail::compared_decode(
      kCross,
      split_,
      split,
      x,
      call.scores(),
      [&] {
        check_decode(*this, x, cache, call);
        func = decode_options(*this, x, cache, call, {split_, token_split_});
      },
      [&] {
        return c10::str(
            " to a context of ",
            context_of(cache, split),
            " tokens in ",
            cache.options().dtype(),
            detail::text_of("key_lengths", call.key_lengths()),
            detail::text_of("key_padding_mask", call.key_padding_mask()),
            detail::text_of("mask", call.mask()),
            detail::text_of("bias", call.bias()));
      });
  const detail::Entered entered(kCross, x, {}, split_);
  const auto queries = queries_of(*this, x, options.kernel());
  if (split != nullptr) {
    const auto keys = cache.keys();
    wait();
    const auto context = split->attend_to_parts(
        queries.to(keys.scalar_type()), keys, cache.values(), func);
    return detail::project_out(
        *this, context.to(queries.scalar_type()), options.kernel(), split_);
  }
  const auto context = detail::attend_to_cache(queries, cache, func);
  entered.wait();
  return detail::project_out(*this, context, options.kernel(), split_);
}

} // namespace torch_attention
