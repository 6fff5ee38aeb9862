#include <torch_attention/nn/modules/multi_head_attention.h>

#include <kernels/choice.h>
#include <kernels/heads.h>
#include <kernels/small_module.h>
#include <nn/checks.h>
#include <nn/modules/func_options.h>
#include <nn/modules/projected.h>
#include <nn/modules/python_mask.h>
#include <nn/rotation.h>
#include <nn/score_rule.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <ostream>

namespace torch_attention {

namespace {

constexpr const char* kName = "MultiHeadAttention";

int64_t num_kv_heads(const MultiHeadAttentionOptions& options) {
  return options.num_kv_heads().value_or(options.num_heads());
}

void check_options(const MultiHeadAttentionOptions& options) {
  checks::check_positive(kName, "d_in", options.d_in());
  checks::check_positive(kName, "d_out", options.d_out());
  checks::check_positive(kName, "context_length", options.context_length());
  checks::check_positive(kName, "num_heads", options.num_heads());
  checks::check_positive(kName, "num_kv_heads", num_kv_heads(options));
  checks::check_dropout(kName, options.dropout());
  checks::check_scale(kName, options.scale());
  checks::check_window(kName, options.window());
  checks::check_softcap(kName, options.softcap());
  TORCH_CHECK(
      options.d_out() % options.num_heads() == 0,
      kName,
      ": expected d_out divisible by num_heads, but got d_out = ",
      options.d_out(),
      ", num_heads = ",
      options.num_heads());
  TORCH_CHECK(
      options.num_heads() % num_kv_heads(options) == 0,
      kName,
      ": expected num_heads divisible by num_kv_heads, but got num_heads = ",
      options.num_heads(),
      ", num_kv_heads = ",
      num_kv_heads(options));
  if (options.rotary()) {
    detail::check_rotary(
        kName, *options.rotary(), options.d_out() / options.num_heads());
  }
}

void check_input(const MultiHeadAttentionImpl& module, const torch::Tensor& x) {
  checks::check_input(
      kName,
      x,
      module.W_query->weight,
      module.options.d_in(),
      module.options.context_length());
}

/// Queries (B, num_heads, T, head_dim); keys and values (B, num_kv_heads, T,
/// head_dim). `table` rotates queries and keys, if it is not null; `first` is
/// the position of each sequence's first token, or undefined: 0.
Projected project_heads(
    MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    Kernel kernel,
    detail::RotaryTable* table,
    const torch::Tensor& first = {}) {
  const auto& options = module.options;
  auto projected = project_linear(module, x, kernel);
  projected.keys = kernels::split_heads(projected.keys, num_kv_heads(options));
  projected.values =
      kernels::split_heads(projected.values, num_kv_heads(options));
  projected.queries =
      kernels::split_heads(projected.queries, options.num_heads());
  if (table != nullptr) {
    const auto rotation = table->at(first, x.size(1), x.device());
    const auto pairing = table->options().pairing();
    projected.queries = detail::rotate(projected.queries, rotation, pairing);
    projected.keys = detail::rotate(projected.keys, rotation, pairing);
  }
  return projected;
}

/// Context of all heads (B, num_heads, T, head_dim) -> (B, T, d_out).
torch::Tensor project_out(
    MultiHeadAttentionImpl& module,
    const torch::Tensor& context,
    Kernel kernel) {
  const auto combined = kernels::combine_heads(context);
  return module.out_proj.is_empty() ? combined
                                    : linear(module.out_proj, combined, kernel);
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
  settings.num_kv_heads = num_kv_heads(options);
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

bool drops_weights(const MultiHeadAttentionImpl& module) {
  return module.dropout->is_training() && module.dropout->options.p() > 0;
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

void check_decode(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const KVCache& cache) {
  TORCH_CHECK(
      module.options.causal(),
      kName,
      ": expected causal = true for decode, since tokens of the past do not "
      "change with those that follow");
  TORCH_CHECK(
      !drops_weights(module),
      kName,
      ": expected evaluation for decode, which has no dropout, but got training "
      "with dropout = ",
      module.dropout->options.p(),
      "; call eval()");
  const auto& has = cache.options();
  const auto kv_heads = num_kv_heads(module.options);
  TORCH_CHECK(
      has.num_kv_heads() == kv_heads && has.head_dim() == module.head_dim,
      kName,
      ": expected a cache of num_kv_heads = ",
      kv_heads,
      " and head_dim = ",
      module.head_dim,
      ", but got ",
      has.num_kv_heads(),
      " and ",
      has.head_dim(),
      "; make_cache makes one that fits");
  const auto window = module.options.window();
  TORCH_CHECK(
      !has.window() || (window && *window <= *has.window()),
      kName,
      ": expected a cache that keeps all tokens or at least the window of ",
      window ? c10::str(*window) : "the module, which is all",
      ", but got one of window = ",
      has.window().value_or(0));
  const auto& weight = module.W_key->weight;
  TORCH_CHECK(
      has.device() == weight.device(),
      kName,
      ": expected a cache on ",
      weight.device(),
      ", where the weights are, but got one on ",
      has.device());
  TORCH_CHECK(
      x.size(0) == has.batch_size(),
      kName,
      ": expected input of as many sequences as the cache has, ",
      has.batch_size(),
      ", but got ",
      x.size(0));
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
        kName,
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
  head_dim = options.d_out() / options.num_heads();
  const auto linear = [&](int64_t out_features) {
    return torch::nn::Linear(
        torch::nn::LinearOptions(options.d_in(), out_features)
            .bias(options.qkv_bias()));
  };
  const auto d_kv = num_kv_heads(options) * head_dim;
  W_query = register_module("W_query", linear(options.d_out()));
  W_key = register_module("W_key", linear(d_kv));
  W_value = register_module("W_value", linear(d_kv));
  if (options.out_proj()) {
    out_proj = register_module(
        "out_proj", torch::nn::Linear(options.d_out(), options.d_out()));
  }
  dropout = register_module("dropout", torch::nn::Dropout(options.dropout()));
  if (options.register_mask()) {
    mask =
        register_buffer("mask", python_mask(kName, options.context_length()));
  }
  // Not shared with the module that this may be a clone of.
  rotary_table_ = options.rotary()
      ? std::make_shared<detail::RotaryTable>(*options.rotary(), head_dim)
      : nullptr;
}

void MultiHeadAttentionImpl::reset_parameters() {
  W_query->reset_parameters();
  W_key->reset_parameters();
  W_value->reset_parameters();
  if (!out_proj.is_empty()) {
    out_proj->reset_parameters();
  }
}

void MultiHeadAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::MultiHeadAttention(d_in=" << options.d_in()
         << ", d_out=" << options.d_out()
         << ", context_length=" << options.context_length()
         << ", num_heads=" << options.num_heads();
  if (num_kv_heads(options) != options.num_heads()) {
    stream << ", num_kv_heads=" << num_kv_heads(options);
  }
  if (options.window()) {
    stream << ", window=" << *options.window();
  }
  if (options.softcap()) {
    stream << ", softcap=" << *options.softcap();
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

torch::Tensor MultiHeadAttentionImpl::forward(const torch::Tensor& x) {
  check_input(*this, x);
  const bool plain =
      rotary_table_ == nullptr && !options.alibi() && !drops_weights(*this);
  if (plain) {
    const auto whole = whole_module(*this, x);
    if (kernels::takes_module(whole, options.kernel())) {
      return kernels::small_module(whole);
    }
  }
  const auto attend = [&] {
    const auto projected =
        project_heads(*this, x, options.kernel(), rotary_table_.get());
    return functional::scaled_dot_product_attention(
        projected.queries,
        projected.keys,
        projected.values,
        head_options(*this).kernel(options.kernel()));
  };
  // Queries, keys and values are freed before there is an output.
  return project_out(*this, attend(), options.kernel());
}

std::tuple<torch::Tensor, torch::Tensor> MultiHeadAttentionImpl::
    forward_with_weights(const torch::Tensor& x) {
  check_input(*this, x);
  const auto projected =
      project_heads(*this, x, Kernel::kReference, rotary_table_.get());
  const auto [context, weights] =
      functional::scaled_dot_product_attention_with_weights(
          projected.queries,
          projected.keys,
          projected.values,
          head_options(*this));
  return {project_out(*this, context, Kernel::kReference), weights};
}

torch::Tensor MultiHeadAttentionImpl::decode(
    const torch::Tensor& x,
    KVCache& cache,
    const torch::Tensor& new_lengths) {
  const torch::NoGradGuard no_grad;
  check_input(*this, x);
  check_decode(*this, x, cache);
  const auto counts = checks::to_counts(
      kName, "new_lengths", new_lengths, x.size(0), x.size(1));
  const auto before = cache.lengths();
  check_room(options.context_length(), before, x.size(1), counts);
  const auto projected =
      project_heads(*this, x, options.kernel(), rotary_table_.get(), before);
  // Held here until nothing can fail, even if the cache moves its rows.
  auto rows_before = cache.rows_;
  cache.append(projected.keys, projected.values, counts);
  try {
    return project_out(
        *this,
        attend_to_cache(*this, projected.queries, before, cache),
        options.kernel());
  } catch (...) {
    cache.undo_append(std::move(rows_before), before);
    throw;
  }
}

KVCache MultiHeadAttentionImpl::make_cache(int64_t batch_size) const {
  const auto& weight = W_key->weight;
  return KVCache(KVCacheOptions(batch_size, num_kv_heads(options), head_dim)
                     .max_length(options.context_length())
                     .window(options.window())
                     .dtype(weight.scalar_type())
                     .device(weight.device()));
}

} // namespace torch_attention
