#include <torch_attention/nn/modules/multi_head_attention.h>

#include <kernels/choice.h>
#include <kernels/small_module.h>
#include <nn/checks.h>
#include <nn/modules/call.h>
#include <nn/modules/heads.h>
#include <nn/modules/python_mask.h>
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

constexpr const char* kMultiHead = "MultiHeadAttention";

void check_options(const MultiHeadAttentionOptions& options) {
  detail::check_heads(kMultiHead, options);
  checks::check_positive(
      kMultiHead, "context_length", options.context_length());
  checks::check_window(kMultiHead, options.window());
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

void check_input(const MultiHeadAttentionImpl& module, const torch::Tensor& x) {
  checks::check_input(
      kMultiHead,
      x,
      module.W_query->weight,
      module.options.d_in(),
      module.options.context_length());
}

/// Queries (B, num_heads, T, head_dim); keys (B, num_kv_heads, T, head_dim),
/// values (B, num_kv_heads, T, value_dim); normalised, and rotated if `table`
/// is not null.
template <typename RotationAt>
Projected project_heads(
    MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    Kernel kernel,
    detail::RotaryTable* table,
    const RotationAt& rotation_at) {
  const auto& options = module.options;
  // In the Python classes' order, keys first: it decides in which order
  // autograd adds the three gradients of x, hence their last bits.
  Projected projected;
  projected.keys = detail::project_keys(module, x, kernel);
  projected.queries = detail::project_queries(module, x, kernel);
  projected.values = detail::project_values(module, x, kernel);
  const bool norm_last = options.qk_norm() && options.qk_norm()->after_rotary();
  const auto normalise = [&] {
    projected.queries = module.q_norm->forward(projected.queries);
    projected.keys = module.k_norm->forward(projected.keys);
  };
  if (options.qk_norm() && !norm_last) {
    normalise();
  }
  if (table != nullptr) {
    const auto rotation = rotation_at();
    const auto pairing = table->options().pairing();
    projected.queries = detail::rotate(projected.queries, rotation, pairing);
    projected.keys = detail::rotate(projected.keys, rotation, pairing);
  }
  if (norm_last) {
    normalise();
  }
  return projected;
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

/// With heads of keys that heads of queries share, and what heads add.
functional::ScaledDotProductAttentionFuncOptions head_options(
    const MultiHeadAttentionImpl& module) {
  const auto& options = module.options;
  auto result = func_options(module).enable_gqa(true);
  result.softcap(options.softcap());
  if (options.alibi()) {
    result.alibi_slopes(functional::alibi_slopes(options.num_heads()));
  }
  return result;
}

/// What ALiBi takes from the scores of tokens that stand at `positions`, int64
/// (T) or (B, T): (H, T, T) or (B, H, T, T).
torch::Tensor alibi_bias(
    const torch::Tensor& slopes,
    const torch::Tensor& positions,
    const torch::Tensor& x) {
  const auto dtype =
      x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const auto at = positions.to(x.device());
  const auto distance = (at.unsqueeze(-1) - at.unsqueeze(-2)).abs();
  return slopes.to(x.device(), dtype).view({-1, 1, 1}).neg() *
      distance.unsqueeze(-3);
}

/// `head_options`, and what one call hides and adds.
functional::ScaledDotProductAttentionFuncOptions call_options(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call,
    const torch::Tensor& positions) {
  auto options = head_options(module);
  if (detail::is_empty(call)) {
    return options;
  }
  const auto T = x.size(1);
  detail::set_call(
      kMultiHead, call, {x.size(0), module.options.num_heads(), T, T}, options);
  if (positions.defined() && options.alibi_slopes().defined()) {
    const auto alibi = alibi_bias(options.alibi_slopes(), positions, x);
    options.bias(options.bias().defined() ? alibi + options.bias() : alibi);
    options.alibi_slopes(torch::Tensor());
  }
  return options;
}

/// The checked positions of `call`, or undefined where nothing goes by them.
torch::Tensor positions_of_call(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  if (!module.options.rotary() && !module.options.alibi()) {
    return {};
  }
  return detail::positions_of(kMultiHead, call, x);
}

detail::Rotation rotation_of_call(
    detail::RotaryTable& table,
    const torch::Tensor& x,
    const torch::Tensor& positions) {
  return positions.defined() ? table.at_positions(positions, x.device())
                             : table.at(/*first=*/{}, x.size(1), x.device());
}

/// How far the tokens of each sequence of a left-padded batch have to move to
/// begin at 0, int64 (B) on the CPU; undefined if they need not.
torch::Tensor left_padding(
    const DecodeOptions& call,
    const torch::Tensor& counts,
    int64_t T) {
  return call.left_padded() && counts.defined() ? T - counts : torch::Tensor();
}

/// x (B, T, C) with the tokens of sequence b moved by `by[b]` places to the
/// front; what leaves at one end, which is padding, comes in at the other.
torch::Tensor moved_tokens(const torch::Tensor& x, const torch::Tensor& by) {
  const auto T = x.size(1);
  const auto places =
      (torch::arange(T, torch::kLong) + by.unsqueeze(1)).remainder(T);
  return x.gather(
      1, places.to(x.device()).unsqueeze(-1).expand({-1, -1, x.size(2)}));
}

void check_decode(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const KVCache& cache) {
  TORCH_CHECK(
      module.options.causal(),
      kMultiHead,
      ": expected causal = true for decode, since tokens of the past do not "
      "change with those that follow");
  TORCH_CHECK(
      !detail::drops_weights(module),
      kMultiHead,
      ": expected evaluation for decode, which has no dropout, but got training "
      "with dropout = ",
      module.dropout->options.p(),
      "; call eval()");
  detail::check_cache(kMultiHead, module, x, cache);
  const auto& has = cache.options();
  const auto window = module.options.window();
  TORCH_CHECK(
      !has.window() || (window && *window <= *has.window()),
      kMultiHead,
      ": expected a cache that keeps all tokens or at least the window of ",
      window ? c10::str(*window) : "the module, which is all",
      ", but got one of window = ",
      has.window().value_or(0));
}

/// Checks that no sequence becomes longer than `context_length`. `new_lengths`
/// is (B) on the CPU, or undefined: T.
void check_room(
    int64_t context_length,
    const torch::Tensor& lengths,
    int64_t T,
    const torch::Tensor& new_lengths) {
  for (int64_t b = 0; b < lengths.size(0); ++b) {
    const auto length = lengths.const_data_ptr<int64_t>()[b];
    const auto count =
        new_lengths.defined() ? new_lengths.const_data_ptr<int64_t>()[b] : T;
    TORCH_CHECK(
        count <= context_length - length,
        kMultiHead,
        ": expected at most ",
        context_length,
        " tokens (context_length), but got ",
        count,
        " new ones for sequence ",
        b,
        " of the cache, which has ",
        length,
        "; the cache is unchanged");
  }
}

/// Attention of queries (B, num_heads, T, head_dim), whose first ones are at
/// the positions `first`, to the keys and values of the cache, in its dtype.
torch::Tensor attend_to_cache(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& queries,
    const torch::Tensor& first,
    const KVCache& cache) {
  const auto keys = cache.keys();
  const auto T = queries.size(2);
  const auto S = keys.size(2);
  const auto starts = cache.starts();
  const auto rows = cache.lengths() - starts;
  const auto offsets = first - starts;
  auto options = head_options(module).kernel(module.options.kernel());
  const auto all_are = [](const torch::Tensor& counts, int64_t count) {
    const auto* begin = counts.const_data_ptr<int64_t>();
    return std::all_of(begin, begin + counts.numel(), [&](int64_t each) {
      return each == count;
    });
  };
  if (!all_are(rows, S) || !all_are(offsets, S - T)) {
    options.key_lengths(rows).query_offsets(offsets);
  }
  return functional::scaled_dot_product_attention(
             queries.to(keys.scalar_type()), keys, cache.values(), options)
      .to(queries.scalar_type());
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
}

void MultiHeadAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::MultiHeadAttention(d_in=" << options.d_in()
         << ", d_out=" << options.d_out()
         << ", context_length=" << options.context_length();
  detail::print_heads(stream, options);
  if (options.window()) {
    stream << ", window=" << *options.window();
  }
  if (options.alibi()) {
    stream << ", alibi=true";
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
  stream << ", dropout=" << options.dropout() << ", qkv_bias=" << std::boolalpha
         << options.qkv_bias() << ", causal=" << options.causal()
         << ", kernel=" << options.kernel() << ")";
}

torch::Tensor MultiHeadAttentionImpl::forward(
    const torch::Tensor& x,
    const ForwardOptions& call) {
  check_input(*this, x);
  const bool plain = rotary_table_ == nullptr && !options.alibi() &&
      !options.qk_norm() && !detail::drops_weights(*this) &&
      detail::is_empty(call);
  if (plain) {
    const auto whole = whole_module(*this, x);
    if (kernels::takes_module(whole, options.kernel())) {
      return kernels::small_module(whole);
    }
  }
  const auto positions = positions_of_call(*this, x, call);
  const auto attend = [&] {
    const auto func =
        call_options(*this, x, call, positions).kernel(options.kernel());
    const auto projected =
        project_heads(*this, x, options.kernel(), rotary_table_.get(), [&] {
          return rotation_of_call(*rotary_table_, x, positions);
        });
    return functional::scaled_dot_product_attention(
        projected.queries, projected.keys, projected.values, func);
  };
  // Queries, keys and values are freed before there is an output.
  return detail::project_out(*this, attend(), options.kernel());
}

std::tuple<torch::Tensor, torch::Tensor> MultiHeadAttentionImpl::
    forward_with_weights(const torch::Tensor& x, const ForwardOptions& call) {
  check_input(*this, x);
  const auto positions = positions_of_call(*this, x, call);
  const auto func = call_options(*this, x, call, positions);
  const auto projected =
      project_heads(*this, x, Kernel::kReference, rotary_table_.get(), [&] {
        return rotation_of_call(*rotary_table_, x, positions);
      });
  const auto [context, weights] =
      functional::scaled_dot_product_attention_with_weights(
          projected.queries, projected.keys, projected.values, func);
  return {detail::project_out(*this, context, Kernel::kReference), weights};
}

torch::Tensor MultiHeadAttentionImpl::decode(
    const torch::Tensor& x,
    KVCache& cache,
    const DecodeOptions& call) {
  const torch::NoGradGuard no_grad;
  check_input(*this, x);
  check_decode(*this, x, cache);
  const auto counts = checks::to_counts(
      kMultiHead, "new_lengths", call.new_lengths(), x.size(0), x.size(1));
  const auto before = cache.lengths();
  check_room(options.context_length(), before, x.size(1), counts);
  const auto padding = left_padding(call, counts, x.size(1));
  const auto tokens = padding.defined() ? moved_tokens(x, padding) : x;
  const auto projected =
      project_heads(*this, tokens, options.kernel(), rotary_table_.get(), [&] {
        return rotary_table_->at(before, x.size(1), x.device());
      });
  // Held here until nothing can fail, even if the cache moves its rows.
  auto rows_before = cache.rows_;
  cache.append(projected.keys, projected.values, counts);
  try {
    const auto context = detail::project_out(
        *this,
        attend_to_cache(*this, projected.queries, before, cache),
        options.kernel());
    return padding.defined() ? moved_tokens(context, -padding) : context;
  } catch (...) {
    cache.undo_append(std::move(rows_before), before);
    throw;
  }
}

KVCache MultiHeadAttentionImpl::make_cache(int64_t batch_size) const {
  return KVCache(detail::cache_options(*this, batch_size)
                     .max_length(options.context_length())
                     .window(options.window()));
}

} // namespace torch_attention
