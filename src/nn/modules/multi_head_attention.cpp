#include <torch_attention/nn/modules/multi_head_attention.h>

#include <check.h>
#include <elementwise.h>
#include <kernels/elements.h>
#include <kernels/rms_norm.h>
#include <nn/checks.h>
#include <nn/modules/cache_view.h>
#include <nn/modules/call.h>
#include <nn/modules/decode.h>
#include <nn/modules/head_norm.h>
#include <nn/modules/heads.h>
#include <nn/modules/multi_head_call.h>
#include <nn/modules/multi_head_options.h>
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
#include <vector>

namespace torch_attention {

namespace {

using detail::kMultiHead;

/// Returns values (B, num_kv_heads, T, value_dim) after their norm, and times
/// `value_scale`.
torch::Tensor normalised_values(
    const MultiHeadAttentionOptions& options,
    const torch::Tensor& values,
    Kernel kernel) {
  auto result = values;
  if (options.value_norm_eps()) {
    kernels::RmsNorm norm;
    norm.eps = *options.value_norm_eps();
    result =
        kernels::rms_norm(result.transpose(1, 2), norm, kernel).transpose(1, 2);
  }
  return options.value_scale() == 1 ? result : result * options.value_scale();
}

void rotate_heads(
    const MultiHeadAttentionOptions& options,
    Projected& projected,
    const detail::RotaryAngles& angles,
    Kernel kernel) {
  const auto pairing = options.rotary()->pairing();
  const auto rotate = [&](torch::Tensor& heads) {
    heads = detail::rotate(heads, angles, pairing, kernel);
  };
  rotate(projected.queries);
  rotate(projected.keys);
  if (options.rotate_values()) {
    rotate(projected.values);
  }
}

/// Returns queries (B, num_heads, T, head_dim) times the learned factors of
/// their elements, and the temperature of their positions.
template <typename Positions>
torch::Tensor scaled_queries(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& queries,
    const Positions& positions) {
  auto result = queries;
  if (module.query_scale.defined()) {
    constexpr double kLn2 = 0.693147180559945309;
    const auto dtype = kernels::compute_dtype(queries.scalar_type());
    const auto& partition = *detail::PartitionAccess::of(module);
    const auto factors =
        torch::softplus(partition.enter_weight(module.query_scale).to(dtype)) /
        kLn2;
    result = (queries.to(dtype) * factors).to(queries.scalar_type());
  }
  if (module.options.temperature()) {
    const auto& temperature = *module.options.temperature();
    result = detail::with_temperature(
        result,
        temperature.by_order() ? positions.order() : positions.positions(),
        temperature);
  }
  return result;
}

/// The tokens (B, T, d_in) that heads are projected from.
struct Tokens {
  const torch::Tensor& x;
  /// What values are projected from instead of x, or undefined.
  torch::Tensor value_input = {};
};

/// Returns the projections to keys, queries and values.
std::vector<torch::Tensor> project_each(
    MultiHeadAttentionImpl& module,
    const Tokens& tokens,
    Kernel kernel) {
  const auto& partition = *detail::PartitionAccess::of(module);
  // In the Python classes' order, keys first: in this order autograd adds the
  // three gradients of x, which affects their last bits.
  std::vector<kernels::LinearLayer> layers = {
      detail::key_layer(module.W_key, partition),
      layer_of(module.W_query),
      detail::key_layer(module.W_value, partition)};
  if (!tokens.value_input.defined()) {
    return kernels::linear_each(tokens.x, layers, kernel);
  }
  const auto [weight, bias] = layers.back();
  layers.pop_back();
  auto outputs = kernels::linear_each(tokens.x, layers, kernel);
  outputs.push_back(kernels::linear(tokens.value_input, weight, bias, kernel));
  return outputs;
}

/// Projects tokens to queries (B, num_heads, T, head_dim), keys (B,
/// num_kv_heads, T, head_dim) and values (B, num_kv_heads, T, value_dim).
template <typename Positions>
Projected project_heads(
    MultiHeadAttentionImpl& module,
    const Tokens& tokens,
    Kernel kernel,
    const Positions& positions) {
  const auto& options = module.options;
  const auto outputs = project_each(module, tokens, kernel);
  const auto num_kv_heads = detail::num_kv_heads(options);
  Projected projected;
  projected.keys = kernels::split_heads(outputs[0], num_kv_heads);
  projected.queries = kernels::split_heads(outputs[1], options.num_heads());
  projected.values = normalised_values(
      options, kernels::split_heads(outputs[2], num_kv_heads), kernel);
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
    rotate_heads(options, projected, positions.angles(), kernel);
  }
  if (norm_last) {
    normalise();
  }
  projected.queries = scaled_queries(module, projected.queries, positions);
  return projected;
}

/// Returns the gate of tokens x (B, T, d_in): (B, num_heads, T, value_dim or
/// 1).
torch::Tensor gate_of(
    MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    Kernel kernel) {
  const auto& options = module.options;
  const auto projected =
      detail::project_to_heads(module.W_gate, x, options.num_heads(), kernel);
  // Options may have changed since the module was made.
  const auto gate = options.output_gate().value_or(OutputGateOptions());
  if (gate.function() == GateFunction::kSigmoid) {
    return by_rows(projected, [](const torch::Tensor& rows) {
      return torch::sigmoid(rows);
    });
  }
  const auto wide =
      projected.to(kernels::compute_dtype(projected.scalar_type()));
  return by_rows(
             wide,
             [](const torch::Tensor& rows) { return torch::softplus(rows); })
      .to(projected.scalar_type());
}

/// Normalises the context of all heads (B, num_heads, T, value_dim), multiplies
/// it by the gate of tokens x (B, T, d_in), and projects it: (B, T, d_out).
torch::Tensor project_context(
    MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const torch::Tensor& context,
    Kernel kernel) {
  auto heads = context;
  if (!module.out_norm.is_empty()) {
    heads = detail::normalised(*module.out_norm, heads, kernel);
  }
  if (!module.W_gate.is_empty()) {
    heads = heads * gate_of(module, x, kernel);
  }
  return detail::project_out(
      module, heads, kernel, *detail::PartitionAccess::of(module));
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
       exchanges_length(table, call),
       call.value_input()});
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
  detail::check_options(options);
  detail::reset_heads(*this, options.d_in());
  sinks = register_parameter(
      "sinks",
      options.sinks() ? torch::zeros({options.num_heads()}) : torch::Tensor(),
      /*requires_grad=*/options.sinks());
  query_scale = register_parameter(
      "query_scale",
      options.query_scale() ? torch::zeros({head_dim}) : torch::Tensor(),
      /*requires_grad=*/options.query_scale());
  const auto value_dim = detail::value_dim_of(options);
  if (options.out_norm()) {
    out_norm = register_module(
        "out_norm",
        HeadNorm(options.num_heads(), value_dim, *options.out_norm()));
  }
  if (options.output_gate()) {
    const auto& gate = *options.output_gate();
    const auto size = gate.scope() == GateScope::kHead ? 1 : value_dim;
    W_gate = register_module(
        "W_gate",
        make_linear(
            options.d_in(),
            options.num_heads() * size,
            gate.bias().value_or(
                options.query_bias().value_or(options.qkv_bias()))));
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
  if (options.out_norm()) {
    out_norm->reset_parameters();
  }
  if (options.output_gate()) {
    W_gate->reset_parameters();
  }
  const torch::NoGradGuard no_grad;
  for (auto& parameter : {sinks, query_scale}) {
    if (parameter.defined()) {
      parameter.zero_();
    }
  }
}

void MultiHeadAttentionImpl::pretty_print(std::ostream& stream) const {
  detail::print_options(stream, options);
}

torch::Tensor MultiHeadAttentionImpl::forward(
    const torch::Tensor& x,
    const ForwardOptions& call) {
  if (detail::lacks_batch(x, call)) {
    return forward(x.unsqueeze(0), detail::with_batch(call)).squeeze(0);
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
      project_heads(
          *this, {input.x, input.value_input}, options.kernel(), positions),
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
  const auto heads = project_heads(
      *this, {input.x, input.value_input}, Kernel::kReference, positions);
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
      project_heads(*this, {in_order}, options.kernel(), positions);
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
