#include <torch_attention/nn/modules/multi_head_attention.h>

#include <kernels/choice.h>
#include <kernels/rms_norm.h>
#include <kernels/small_module.h>
#include <nn/checks.h>
#include <nn/functional/attention_of_call.h>
#include <nn/modules/call.h>
#include <nn/modules/decode.h>
#include <nn/modules/decode_parts.h>
#include <nn/modules/head_norm.h>
#include <nn/modules/head_split.h>
#include <nn/modules/heads.h>
#include <nn/modules/multi_head_call.h>
#include <nn/modules/option_fields.h>
#include <nn/modules/python_mask.h>
#include <nn/modules/rotation_of_call.h>
#include <nn/modules/temperature.h>
#include <nn/modules/token_split.h>
#include <nn/rotation.h>
#include <nn/score_rule.h>

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
  checks::check_windows(
      kMultiHead, options.causal(), options.window(), options.window_after());
  checks::check_chunk(
      kMultiHead, options.chunk(), options.window(), options.window_after());
  TORCH_CHECK(
      !options.clip_qkv() || *options.clip_qkv() > 0,
      kMultiHead,
      ": expected clip_qkv > 0, but got ",
      *options.clip_qkv());
  TORCH_CHECK(
      !options.value_norm_eps() || *options.value_norm_eps() >= 0,
      kMultiHead,
      ": expected value_norm_eps >= 0, but got ",
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
      kMultiHead,
      ": expected a qk_norm of all heads before the rotary embedding, but got "
      "after_rotary = true");
}

/// Queries (B, num_heads, T, head_dim); keys (B, num_kv_heads, T, head_dim),
/// values (B, num_kv_heads, T, value_dim); normalised, clipped, rotated if
/// `table` is not null, and queries with their temperature, for tokens whose
/// positions `places` has.
template <typename Places>
Projected project_heads(
    MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    Kernel kernel,
    detail::RotaryTable* table,
    const Places& places,
    const detail::HeadSplitPointer& split) {
  const auto& options = module.options;
  // In the Python classes' order, keys first: it decides in which order
  // autograd adds the three gradients of x, hence their last bits.
  const auto outputs = kernels::linear_each(
      x,
      {detail::key_layer(module.W_key, split),
       layer_of(module.W_query),
       detail::key_layer(module.W_value, split)},
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
  if (table != nullptr) {
    const auto rotation = places.rotation(*table);
    const auto pairing = table->options().pairing();
    const auto rotate = [&](const torch::Tensor& heads) {
      return detail::rotate(heads, rotation, pairing, kernel);
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
        temperature.by_order() ? places.order() : places.positions(),
        temperature);
  }
  return projected;
}

/// The context of all heads (B, num_heads, T, value_dim) of tokens x (B, T,
/// d_in), behind its gate and projected: (B, T, d_out).
torch::Tensor project_context(
    MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const torch::Tensor& context,
    Kernel kernel,
    const detail::HeadSplitPointer& split) {
  if (module.W_gate.is_empty()) {
    return detail::project_out(module, context, kernel, split);
  }
  const auto gate = detail::project_to_heads(
      module.W_gate, x, module.options.num_heads(), kernel);
  return detail::project_out(
      module, context * torch::sigmoid(gate), kernel, split);
}

/// Returns whether attention and projections are all there is to compute.
bool is_plain(
    const MultiHeadAttentionImpl& module,
    const ForwardOptions& call) {
  return detail::OptionFields::is_small(module.options) &&
      detail::is_empty(call) && !detail::drops_weights(module) &&
      detail::HeadSplitAccess::of(module) == nullptr &&
      detail::TokenSplitAccess::of(module) == nullptr;
}

/// The module and its input, for a kernel that computes all of it.
kernels::ModuleAttention whole_module(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x) {
  static const torch::Tensor none;
  const auto& options = module.options;
  const auto tensors = [](const torch::nn::Linear& linear) {
    return linear.is_empty()
        ? kernels::LinearTensors{&none, &none}
        : kernels::LinearTensors{&linear->weight, &linear->bias};
  };
  kernels::ModuleSettings settings;
  settings.num_heads = options.num_heads();
  settings.num_kv_heads = detail::num_kv_heads(options);
  settings.rule = rule_of(options);
  settings.rule.scale = settings.rule.factor(module.head_dim);
  return {
      &x,
      tensors(module.W_query),
      tensors(module.W_key),
      tensors(module.W_value),
      tensors(module.out_proj),
      settings};
}

/// The positions of the tokens x (B, T, ...) of `forward`: `given`, or from 0
/// on.
struct PlacesOfCall {
  const torch::Tensor& x;
  const ForwardOptions& call;
  const torch::Tensor& given;
  const detail::TokenSplitPointer& split;

  detail::Rotation rotation(detail::RotaryTable& table) const {
    return detail::rotation_of_call(kMultiHead, table, x, call, given, split);
  }

  torch::Tensor positions() const {
    return given.defined()
        ? given
        : torch::arange(
              x.size(1), torch::device(x.device()).dtype(torch::kLong));
  }

  /// The places of the tokens in their sequences, whatever `positions` says.
  torch::Tensor order() const {
    if (!call.positions().defined()) {
      return positions();
    }
    const auto without = ForwardOptions().cu_seqlens(call.cu_seqlens());
    const auto places = split == nullptr
        ? detail::positions_of(kMultiHead, without, x)
        : split->positions(x.size(1));
    return PlacesOfCall{x, without, places, split}.positions();
  }
};

/// The places of the tokens that `decode` adds.
struct PlacesInCache {
  const torch::Tensor& x;
  const DecodeOptions& call;
  const detail::NewTokens& tokens;

  detail::Rotation rotation(detail::RotaryTable& table) const {
    return detail::rotation_of_call(kMultiHead, table, x, call, tokens);
  }

  torch::Tensor positions() const {
    return tokens.before.unsqueeze(1) + torch::arange(x.size(1), torch::kLong);
  }

  torch::Tensor order() const {
    return positions();
  }
};

void check_decode(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const KVCache& cache) {
  detail::check_decodes(kMultiHead, module);
  detail::check_cache(kMultiHead, module, x, cache);
  const auto& split = detail::TokenSplitAccess::of(module);
  if (split == nullptr) {
    detail::check_part(kMultiHead, cache);
  } else {
    detail::check_part(kMultiHead, cache, split->num_processes, split->rank);
  }
  const auto& has = cache.options();
  const auto window = module.options.window();
  TORCH_CHECK(
      !has.window() || (window && *window <= *has.window()),
      kMultiHead,
      ": expected a cache that keeps all tokens or at least the window of ",
      window ? c10::str(*window) : "the module, which is all",
      ", but got one of window = ",
      has.window().value_or(0));
  const auto chunk = module.options.chunk();
  TORCH_CHECK(
      !has.chunk() || (chunk && *has.chunk() % *chunk == 0),
      kMultiHead,
      ": expected a cache that keeps all tokens or chunks of a multiple of ",
      chunk ? c10::str(*chunk) : "the module's, which is all",
      ", but got one of chunk = ",
      has.chunk().value_or(0));
}

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
    : options(options_) {
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
  // Not shared with the module that this may be a clone of.
  rotary_table_ = options.rotary()
      ? std::make_shared<detail::RotaryTable>(*options.rotary(), head_dim)
      : nullptr;
}

void MultiHeadAttentionImpl::reset_parameters() {
  detail::reset_parameters_of_heads(*this);
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
  // Modules that first ask for the length of the whole text are not told.
  const bool asks_first =
      rotary_table_ != nullptr && rotary_table_->changes_with_length();
  detail::check_together(
      kMultiHead, x, split_, asks_first ? nullptr : token_split_, [&] {
        detail::check_input_of_call(*this, x, call);
      });
  if (rotary_table_ == nullptr && is_plain(*this, call)) {
    const auto whole = whole_module(*this, x);
    if (kernels::takes_module(whole, options.kernel())) {
      return kernels::small_module(whole);
    }
  }
  const auto positions = detail::positions_of_call(*this, x, call);
  const detail::Entered entered(kMultiHead, x, {}, split_);
  const auto attend = [&] {
    const auto func = detail::call_options(*this, x, call, positions, split_)
                          .kernel(options.kernel());
    const auto projected = project_heads(
        *this,
        entered.x,
        options.kernel(),
        rotary_table_.get(),
        PlacesOfCall{x, call, positions, token_split_},
        split_);
    if (token_split_ != nullptr) {
      return token_split_->attend(
          projected.queries, projected.keys, projected.values, func);
    }
    return functional::detail::attend(
        projected.queries,
        projected.keys,
        projected.values,
        func,
        detail::heads_of(split_));
  };
  // Queries, keys and values are freed before there is an output.
  const auto context = attend();
  entered.wait();
  return project_context(*this, entered.x, context, options.kernel(), split_);
}

std::tuple<torch::Tensor, torch::Tensor> MultiHeadAttentionImpl::
    forward_with_weights(const torch::Tensor& x, const ForwardOptions& call) {
  checks::check_not_packed(kMultiHead, call.cu_seqlens());
  detail::check_has_all_tokens("forward_with_weights", *this);
  detail::check_input_of_call(*this, x, call);
  const auto positions = detail::positions_of_call(*this, x, call);
  const auto func = detail::call_options(*this, x, call, positions, split_);
  const detail::Entered entered(kMultiHead, x, {}, split_);
  const auto projected = project_heads(
      *this,
      entered.x,
      Kernel::kReference,
      rotary_table_.get(),
      PlacesOfCall{x, call, positions, token_split_},
      split_);
  const auto [context, weights] = functional::detail::attend_with_weights(
      projected.queries,
      projected.keys,
      projected.values,
      func,
      detail::heads_of(split_));
  entered.wait();
  return {
      project_context(*this, entered.x, context, Kernel::kReference, split_),
      weights};
}

torch::Tensor MultiHeadAttentionImpl::decode(
    const torch::Tensor& x,
    KVCache& cache,
    const DecodeOptions& call) {
  const torch::NoGradGuard no_grad;
  const auto* parts = token_split_ != nullptr && token_split_->num_processes > 1
      ? token_split_.get()
      : nullptr;
  detail::NewTokens tokens;
  const auto was_long = cache.rotated_long_;
  bool is_long = was_long;
  const auto check = [&] {
    detail::check_input(*this, x);
    detail::check_length(kMultiHead, x, {}, options.context_length());
    check_decode(*this, x, cache);
    detail::check_no_function(kMultiHead, call.scores(), split_);
    detail::check_has_blocks(*this, x, call.visible_blocks());
    TORCH_CHECK(
        parts == nullptr || !call.visible_blocks().defined(),
        kMultiHead,
        ": expected no visible_blocks, where several processes share the "
        "tokens");
    tokens = detail::new_tokens(
        kMultiHead, x, cache, call, options.context_length());
    if (options.rotary() && !call.rotary_cos().defined()) {
      is_long = detail::checked_rotation(
          kMultiHead, *options.rotary(), tokens, was_long);
    }
  };
  const auto wait = detail::compared_decode(
      kMultiHead, split_, parts, x, call.scores(), check, [&] {
        return detail::text_of_decode(cache, call, tokens);
      });
  const auto T = x.size(1);
  const detail::Entered entered(kMultiHead, x, {}, split_);
  const auto moved =
      tokens.padding.defined() ? detail::moved_tokens(x, tokens.padding) : x;
  const auto projected = project_heads(
      *this,
      moved,
      options.kernel(),
      rotary_table_.get(),
      PlacesInCache{x, call, tokens},
      split_);
  // Held here until nothing can fail, even if the cache moves its rows.
  auto rows_before = cache.rows_;
  cache.append(projected.keys, projected.values, tokens.counts);
  cache.rotated_long_ = is_long;
  try {
    auto func = detail::head_options(*this, split_).kernel(options.kernel());
    if (parts == nullptr) {
      detail::set_rows_of_cache(cache, tokens.before, T, func);
    }
    auto own_call = call;
    own_call.bias(detail::own_heads(kMultiHead, "bias", call.bias(), split_));
    detail::set_scores_of_call(
        kMultiHead, own_call, cache, T, options.num_heads(), func);
    detail::set_blocks_of_decode(
        kMultiHead,
        call,
        cache,
        tokens,
        {x.size(0), T, T},
        options.block_scope(),
        func);
    wait();
    const auto attended = parts != nullptr
        ? detail::attend_to_parts(
              *parts, projected.queries, cache, tokens.before, func)
        : detail::attend_to_cache(projected.queries, cache, func);
    entered.wait();
    const auto context =
        project_context(*this, moved, attended, options.kernel(), split_);
    return tokens.padding.defined()
        ? detail::moved_tokens(context, -tokens.padding)
        : context;
  } catch (...) {
    cache.undo_append(std::move(rows_before), tokens.before);
    cache.rotated_long_ = was_long;
    throw;
  }
}

KVCache MultiHeadAttentionImpl::make_cache(int64_t batch_size) const {
  const auto result = detail::cache_options(*this, batch_size)
                          .max_length(options.context_length());
  if (token_split_ != nullptr && token_split_->num_processes > 1) {
    return KVCache(KVCacheOptions(result)
                       .num_parts(token_split_->num_processes)
                       .part(token_split_->rank));
  }
  return KVCache(
      KVCacheOptions(result).window(options.window()).chunk(options.chunk()));
}

} // namespace torch_attention
