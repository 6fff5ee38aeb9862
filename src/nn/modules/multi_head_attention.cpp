#include <torch_attention/nn/modules/multi_head_attention.h>

#include <kernels/small_module.h>
#include <nn/modules/checks.h>
#include <nn/modules/projected.h>
#include <nn/modules/python_mask.h>
#include <torch_attention/nn/functional/attention.h>

#include <cmath>
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
}

/// (B, T, H * D) -> (B, H, T, D)
torch::Tensor split_heads(const torch::Tensor& x, int64_t num_heads) {
  // The last size is given, not -1, which empty tensors leave undetermined.
  const auto head_dim = x.size(2) / num_heads;
  return x.view({x.size(0), x.size(1), num_heads, head_dim}).transpose(1, 2);
}

/// (B, H, T, D) -> (B, T, H * D)
torch::Tensor combine_heads(const torch::Tensor& x) {
  return x.transpose(1, 2).contiguous().view(
      {x.size(0), x.size(2), x.size(1) * x.size(3)});
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
/// head_dim).
Projected project_heads(
    MultiHeadAttentionImpl& module,
    const torch::Tensor& x) {
  const auto& options = module.options;
  auto projected = project_linear(module, x);
  projected.keys = split_heads(projected.keys, num_kv_heads(options));
  projected.values = split_heads(projected.values, num_kv_heads(options));
  projected.queries = split_heads(projected.queries, options.num_heads());
  return projected;
}

/// Context of all heads (B, num_heads, T, head_dim) -> (B, T, d_out).
torch::Tensor project_out(
    MultiHeadAttentionImpl& module,
    const torch::Tensor& context) {
  const auto combined = combine_heads(context);
  return module.out_proj.is_empty() ? combined
                                    : linear(module.out_proj, combined);
}

/// The module and its input, for a kernel that computes all of it.
kernels::ModuleAttention whole_module(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x) {
  const auto& options = module.options;
  const auto tensors = [](const torch::nn::Linear& linear) {
    return kernels::LinearTensors{linear->weight, linear->bias};
  };
  kernels::ModuleAttention whole;
  whole.x = x;
  whole.query = tensors(module.W_query);
  whole.key = tensors(module.W_key);
  whole.value = tensors(module.W_value);
  if (!module.out_proj.is_empty()) {
    whole.out = tensors(module.out_proj);
  }
  whole.num_heads = options.num_heads();
  whole.num_kv_heads = num_kv_heads(options);
  whole.scale = options.scale().value_or(
      1 / std::sqrt(static_cast<double>(module.head_dim)));
  whole.causal = options.causal();
  whole.window = options.window().value_or(0);
  return whole;
}

bool drops_weights(const MultiHeadAttentionImpl& module) {
  return module.dropout->is_training() && module.dropout->options.p() > 0;
}

functional::ScaledDotProductAttentionFuncOptions func_options(
    const MultiHeadAttentionImpl& module) {
  return functional::ScaledDotProductAttentionFuncOptions()
      .causal(module.options.causal())
      .window(module.options.window())
      .enable_gqa(true)
      .scale(module.options.scale())
      .dropout(module.dropout->options.p())
      .training(module.dropout->is_training());
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
  if (options.mask()) {
    mask = register_buffer("mask", python_mask(options.context_length()));
  }
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
  stream << ", dropout=" << options.dropout() << ", qkv_bias=" << std::boolalpha
         << options.qkv_bias() << ", causal=" << options.causal()
         << ", kernel=" << options.kernel() << ")";
}

torch::Tensor MultiHeadAttentionImpl::forward(const torch::Tensor& x) {
  check_input(*this, x);
  if (options.kernel() != Kernel::kReference && !drops_weights(*this)) {
    const auto whole = whole_module(*this, x);
    if (kernels::is_small_module(whole)) {
      return kernels::small_module(whole);
    }
  }
  const auto projected = project_heads(*this, x);
  const auto context = functional::scaled_dot_product_attention(
      projected.queries,
      projected.keys,
      projected.values,
      func_options(*this).kernel(options.kernel()));
  return project_out(*this, context);
}

std::tuple<torch::Tensor, torch::Tensor> MultiHeadAttentionImpl::
    forward_with_weights(const torch::Tensor& x) {
  check_input(*this, x);
  const auto projected = project_heads(*this, x);
  const auto [context, weights] =
      functional::scaled_dot_product_attention_with_weights(
          projected.queries,
          projected.keys,
          projected.values,
          func_options(*this));
  return {project_out(*this, context), weights};
}

} // namespace torch_attention
