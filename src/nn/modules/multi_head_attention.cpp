#include <torch_attention/nn/modules/multi_head_attention.h>

#include <check.h>
#include <elementwise.h>
#include <kernels/rms_norm.h>
#include <nn/checks.h>
#include <nn/modules/cache_view.h>
#include <nn/modules/call.h>
#include <nn/modules/decode.h>
#include <nn/modules/head_norm.h>
#include <nn/modules/heads.h>
#include <nn/modules/multi_head_call.h>
#include <nn/modules/partition.h>
#include <nn/modules/python_mask.h>
#include <nn/modules/rotary_angles.h>
#include <nn/modules/small_module.h>
#include <nn/modules/temperature.h>
#include <nn/rotary.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>

namespace torch_attention {

namespace {

using detail::kMultiHead;

void check_options(const MultiHeadAttentionOptions& options) {
  detail::check_heads(kMultiHead, options);
  checks::check_positive(
      kMultiHead, "context_length", options.context_length());
  checks::check_rule(kMultiHead, options.rule());
  TORCH_ATTENTION_CHECK(
      !options.clip_qkv() || *options.clip_qkv() > 0,
      "MultiHeadAttention: expected clip_qkv > 0, but got {}",
      *options.clip_qkv());
  TORCH_ATTENTION_CHECK(
      !options.value_norm_eps() || *options.value_norm_eps() >= 0,
      "MultiHeadAttention: expected value_norm_eps >= 0, but got {}",
      *options.value_norm_eps());
  if (options.temperature()) {
    detail::check_temperature(kMultiHead, *options.temperature());
  }
  if (options.rotary()) {
    detail::check_rotary(
        kMultiHead, *options.rotary(), detail::head_dim_of(options));
  }
  const bool normalises_all = options.qk_norm() &&
      options.qk_norm()->scope() == HeadNormScope::kAllHeads;
  TORCH_CHECK(
      !normalises_all || !options.qk_norm()->after_rotary(),
      "MultiHeadAttention: expected a qk_norm of all heads before the "
      "rotary embedding, but got after_rotary = true");
}

/// Projects tokens x (B, T, d_in) to queries (B, num_heads, T, head_dim), keys
/// (B, num_kv_heads, T, head_dim) and values (B, num_kv_heads, T, value_dim).
template <typename Positions>
Projected project_heads(
    MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    Kernel kernel,
    const Positions& positions) {
  const auto& options = module.options;
  const auto& partition = *detail::PartitionAccess::of(module);
  // In the Python classes' order, keys first: in this order autograd adds the
  // three gradients of x, which affects their last bits.
  const auto outputs = kernels::linear_each(
      x,
      {detail::key_layer(module.W_key, partition),
       layer_of(module.W_query),
       detail::key_layer(module.W_value, partition)},
      kernel);
  const auto num_kv_heads = detail::num_kv_heads(options);
  Projected projected;
  projected.keys = kernels::split_heads(outputs[0], num_kv_heads);
  projected.queries = kernels::split_heads(outputs[1], options.num_heads());
  projected.values = kernels::split_heads(outputs[2], num_kv_heads);
  if (options.value_norm_eps()) {
    kernels::RmsNorm norm;
    norm.eps = *options.value_norm_eps();
    projected.values =
        kernels::rms_norm(projected.values.transpose(1, 2), norm, kernel)
            .transpose(1, 2);
  }
  const bool norm_last = options.qk_norm() && options.qk_norm()->after_rotary();
  const auto normalise = [&] {
    projected.queries =
        detail::normalised(*module.q_norm, projected.queries, kernel);
    projected.keys = detail::normalised(*module.k_norm, projected.keys, kernel);
  };
  if (options.qk_norm() && !norm_last) {
    normalise();
  }
  if (options.clip_qkv()) {
    const auto most = *options.clip_qkv();
    for (auto* each :
         {&projected.queries, &projected.keys, &projected.values}) {
      *each = each->clamp(-most, most);
    }
  }
  if (positions.table != nullptr) {
    const auto angles = positions.angles();
    const auto pairing = options.rotary()->pairing();
    const auto rotate = [&](const torch::Tensor& heads) {
      return detail::rotate(heads, angles, pairing, kernel);
    };
    projected.queries = rotate(projected.queries);
    projected.keys = rotate(projected.keys);
  }
  if (norm_last) {
    normalise();
  }
  if (options.temperature()) {
    const auto& temperature = *options.temperature();
    projected.queries = detail::with_temperature(
        projected.queries,
        temperature.by_order() ? positions.order() : positions.positions(),
        temperature);
  }
  return projected;
}

/// Multiplies the context of all heads (B, num_heads, T, value_dim) by the gate
/// of tokens x (B, T, d_in), and projects it: (B, T, d_out).
torch::Tensor project_context(
    MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const torch::Tensor& context,
    Kernel kernel) {
  const auto& partition = *detail::PartitionAccess::of(module);
  if (module.W_gate.is_empty()) {
    return detail::project_out(module, context, kernel, partition);
  }
  const auto gate = detail::project_to_heads(
      module.W_gate, x, module.options.num_heads(), kernel);
  const auto opened = by_rows(
      gate, [](const torch::Tensor& rows) { return torch::sigmoid(rows); });
  return detail::project_out(module, context * opened, kernel, partition);
}

/// Returns whether the processes first exchange the length of the sequence, on
/// which the angles depend.
bool exchanges_length(
    const detail::RotaryTable* table,
    const ForwardOptions& call) {
  return table != nullptr && table->changes_with_length() &&
      !call.rotary_cos().defined();
}

/// Starts a call of `forward`; `check` throws if an argument is wrong.
detail::PartitionInput enter(
    const detail::Partition& partition,
    const detail::RotaryTable* table,
    const torch::Tensor& x,
    const ForwardOptions& call,
    c10::function_ref<void()> check) {
  return partition.enter(
      {kMultiHead,
       x,
       /*context=*/{},
       check,
       [&] { return detail::describe_learned(call); },
       exchanges_length(table, call)});
}

/// The positions of the tokens x (B, T, ...) in a call of `forward`.
struct PositionsOfCall {
  const MultiHeadAttentionImpl& module;
  /// Null without rotary embedding.
  detail::RotaryTable* table;
  const torch::Tensor& x;
  const ForwardOptions& call;
  /// (T) or (B, T); undefined: from 0 on.
  const torch::Tensor& checked;

  detail::RotaryAngles angles() const {
    return detail::rotary_angles(
        *table, x, call, checked, *detail::PartitionAccess::of(module));
  }

  torch::Tensor positions() const {
    return or_from_0(checked);
  }

  /// Returns the indices of the tokens in their sequences, which ignore
  /// `positions` of the call.
  torch::Tensor order() const {
    return or_from_0(detail::sequence_positions(module, x, call));
  }

  torch::Tensor or_from_0(const torch::Tensor& positions) const {
    return positions.defined()
        ? positions
        : torch::arange(
              x.size(1), torch::device(x.device()).dtype(torch::kLong));
  }
};

/// The positions of the tokens that `decode` adds.
struct PositionsInCache {
  /// Null without rotary embedding.
  detail::RotaryTable* table;
  const torch::Tensor& x;
  const DecodeOptions& call;
  const detail::NewTokens& tokens;

  detail::RotaryAngles angles() const {
    return detail::rotary_angles(*table, x, call, tokens);
  }

  torch::Tensor positions() const {
    return tokens.before.unsqueeze(1) + torch::arange(x.size(1), torch::kLong);
  }

  torch::Tensor order() const {
    return positions();
  }
};

} // namespace

MultiHeadAttentionImpl::MultiHeadAttentionImpl(
    int64_t d_in,
    int64_t d_out,
    int64_t context_length,
    double dropout_p,
    int64_t num_heads,
    bool qkv_bias)
    : MultiHeadAttentionImpl(
          MultiHeadAttentionOptions(d_in, d_out, context_length, num_heads)
              .dropout(dropout_p)
              .qkv_bias(qkv_bias)) {}

MultiHeadAttentionImpl::MultiHeadAttentionImpl(
    const MultiHeadAttentionOptions& options_)
    : options(options_), partition_(detail::whole_partition()) {
  MultiHeadAttentionImpl::reset();
}

void MultiHeadAttentionImpl::reset() {
  check_options(options);
  detail::reset_heads(*this, options.d_in());
  sinks = register_parameter(
      "sinks",
      options.sinks() ? torch::zeros({options.num_heads()}) : torch::Tensor(),
      /*requires_grad=*/options.sinks());
  if (options.output_gate()) {
    W_gate = register_module(
        "W_gate",
        make_linear(
            options.d_in(),
            options.num_heads() * detail::value_dim_of(options),
            options.query_bias().value_or(options.qkv_bias())));
  }
  if (options.register_mask()) {
    mask = register_buffer(
        "mask", python_mask(kMultiHead, options.context_length()));
  }
  // `clone` copies the pointer: make a new table, which is not shared.
  rotary_table_ = options.rotary()
      ? std::make_shared<detail::RotaryTable>(*options.rotary(), head_dim)
      : nullptr;
}

void MultiHeadAttentionImpl::reset_parameters() {
  detail::reset_parameters_of_heads(kMultiHead, *this);
  if (options.output_gate()) {
    W_gate->reset_parameters();
  }
  if (options.sinks()) {
    const torch::NoGradGuard no_grad;
    sinks.zero_();
  }
}

void MultiHeadAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::MultiHeadAttention(d_in=" << options.d_in()
         << ", d_out=" << options.d_out()
         << ", context_length=" << options.context_length();
  detail::print_heads(stream, options);
  if (options.alibi()) {
    stream << ", alibi=true";
  }
  if (options.sinks()) {
    stream << ", sinks=true";
  }
  if (options.output_gate()) {
    stream << ", output_gate=true";
  }
  if (options.clip_qkv()) {
    stream << ", clip_qkv=" << *options.clip_qkv();
  }
  if (options.value_norm_eps()) {
    stream << ", value_norm_eps=" << *options.value_norm_eps();
  }
  if (options.temperature()) {
    const auto& temperature = *options.temperature();
    stream << ", temperature_floor_scale=" << temperature.floor_scale()
           << ", temperature_scale=" << temperature.scale();
    if (temperature.by_order()) {
      stream << ", temperature_by_order=true";
    }
  }
  if (options.rotary()) {
    const auto& rotary = *options.rotary();
    stream << ", rotary_theta=" << rotary.theta()
           << ", rotary_dim=" << rotary.dim().value_or(head_dim)
           << ", rotary_pairing=" << rotary.pairing()
           << ", rotary_factor=" << rotary.factor();
    if (rotary.scaling() != RotaryScaling::kLinear) {
      stream << ", rotary_scaling=" << rotary.scaling();
    }
  }
  if (options.block_scope() != BlockScope::kCausal) {
    stream << ", block_scope=" << options.block_scope();
  }
  if (options.needs_blocks()) {
    stream << ", needs_blocks=true";
  }
  stream << ", dropout=" << options.dropout() << ", qkv_bias=" << std::boolalpha
         << options.qkv_bias() << ", causal=" << options.causal()
         << ", kernel=" << options.kernel() << ")";
}

torch::Tensor MultiHeadAttentionImpl::forward(
    const torch::Tensor& x,
    const ForwardOptions& call) {
  if (detail::lacks_batch(x, call)) {
    return forward(x.unsqueeze(0), call).squeeze(0);
  }
  if (auto output = detail::small_module(*this, x, call); output.defined()) {
    return output;
  }
  detail::CheckedCall checked;
  const auto input = enter(*partition_, rotary_table_.get(), x, call, [&] {
    checked = detail::check_call(*this, x, call);
  });
  const PositionsOfCall positions{
      *this, rotary_table_.get(), x, call, checked.positions};
  // Queries, keys and values are a temporary, so that they are freed before the
  // output is allocated.
  const auto context = partition_->attend(
      project_heads(*this, input.x, options.kernel(), positions),
      checked.options.kernel(options.kernel()));
  input.wait();
  return project_context(*this, input.x, context, options.kernel());
}

std::tuple<torch::Tensor, torch::Tensor> MultiHeadAttentionImpl::
    forward_with_weights(const torch::Tensor& x, const ForwardOptions& call) {
  // All processes refuse it, so none may wait for another one.
  partition_->check_has_all_tokens(kMultiHead, "forward_with_weights");
  detail::CheckedCall checked;
  const auto check = [&] {
    checks::check_not_packed(kMultiHead, call.cu_seqlens());
    checked = detail::check_call(*this, x, call);
  };
  const auto input = enter(*partition_, rotary_table_.get(), x, call, check);
  const PositionsOfCall positions{
      *this, rotary_table_.get(), x, call, checked.positions};
  const auto heads =
      project_heads(*this, input.x, Kernel::kReference, positions);
  const auto [context, weights] =
      partition_->attend_with_weights(heads, checked.options);
  input.wait();
  return {
      project_context(*this, input.x, context, Kernel::kReference), weights};
}

torch::Tensor MultiHeadAttentionImpl::decode(
    const torch::Tensor& x,
    KVCache& cache,
    const DecodeOptions& call) {
  detail::SlabView view(cache);
  return decode_view(x, view, call);
}

torch::Tensor MultiHeadAttentionImpl::decode(
    const torch::Tensor& x,
    const BlockBatch& sequences,
    const DecodeOptions& call) {
  detail::BlocksView view(sequences);
  return decode_view(x, view, call);
}

torch::Tensor MultiHeadAttentionImpl::decode_view(
    const torch::Tensor& x,
    detail::CacheView& cache,
    const DecodeOptions& call) {
  const torch::NoGradGuard no_grad;
  detail::CheckedDecode checked;
  const auto& tokens = checked.tokens;
  const auto input = partition_->enter_cached(
      {kMultiHead,
       x,
       /*context=*/{},
       [&] { checked = detail::check_decode(*this, x, cache, call); },
       [&] { return detail::describe_decode(cache, call, tokens); }});
  const auto in_order = detail::padding_last(input.x, tokens);
  const PositionsInCache positions{rotary_table_.get(), x, call, tokens};
  const auto heads =
      project_heads(*this, in_order, options.kernel(), positions);
  detail::CacheAppend appended(cache, heads.keys, heads.values, tokens.counts);
  auto func = detail::decode_options(
      *this, x, cache, call, tokens, std::move(checked.options));
  input.wait();
  const auto context = partition_->attend_to_cache(
      heads.queries, cache, tokens.before, std::move(func));
  auto output = detail::padding_first(
      project_context(*this, in_order, context, options.kernel()), tokens);
  appended.commit();
  return output;
}

KVCache MultiHeadAttentionImpl::make_cache(int64_t batch_size) const {
  return KVCache(
      partition_->cache_options(detail::cache_options(*this, batch_size)
                                    .max_length(options.context_length())
                                    .window(options.window())
                                    .chunk(options.chunk())));
}

BlockCacheOptions MultiHeadAttentionImpl::block_cache_options() const {
  const auto& weight = W_key->weight;
  return BlockCacheOptions(detail::num_kv_heads(options), head_dim)
      .value_dim(detail::value_dim_of(options))
      .window(options.window())
      .chunk(options.chunk())
      .dtype(weight.scalar_type())
      .device(weight.device());
}

} // namespace torch_attention
