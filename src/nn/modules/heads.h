#pragma once

#include <check.h>
#include <kernels/heads.h>
#include <kernels/linear.h>
#include <nn/checks.h>
#include <nn/modules/partition.h>
#include <nn/modules/projected.h>
#include <nn/score_rule.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/modules/head_norm.h>

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <ostream>

/// Code shared by `MultiHeadAttention`, `CrossAttention` and, in part,
/// `RelativeAttention`, whose members and options have the same names. `Module`
/// is one of the classes, `Options` its options.
namespace torch_attention::detail {

template <typename Options>
int64_t num_kv_heads(const Options& options) {
  return options.num_kv_heads().value_or(options.num_heads());
}

template <typename Options>
int64_t head_dim_of(const Options& options) {
  return options.head_dim().value_or(options.d_out() / options.num_heads());
}

template <typename Options>
int64_t value_dim_of(const Options& options) {
  return options.value_dim().value_or(head_dim_of(options));
}

/// Checks the sizes of tokens and of the heads of queries and keys.
template <typename Options>
void check_sizes(const char* name, const Options& options) {
  checks::check_positive(name, "d_in", options.d_in());
  checks::check_positive(name, "d_out", options.d_out());
  checks::check_positive(name, "num_heads", options.num_heads());
  checks::check_positive(name, "num_kv_heads", num_kv_heads(options));
  checks::check_dropout(name, options.dropout());
  TORCH_ATTENTION_CHECK(
      options.head_dim() || options.d_out() % options.num_heads() == 0,
      "{}: expected d_out divisible by num_heads, or head_dim, but got "
      "d_out = {}, num_heads = {} and no head_dim",
      name,
      options.d_out(),
      options.num_heads());
  checks::check_positive(name, "head_dim", head_dim_of(options));
  TORCH_ATTENTION_CHECK(
      options.num_heads() % num_kv_heads(options) == 0,
      "{}: expected num_heads divisible by num_kv_heads, but got "
      "num_heads = {}, num_kv_heads = {}",
      name,
      options.num_heads(),
      num_kv_heads(options));
}

template <typename Options>
void check_heads(const char* name, const Options& options) {
  check_sizes(name, options);
  checks::check_positive(name, "value_dim", value_dim_of(options));
  const auto joined = options.num_heads() * value_dim_of(options);
  TORCH_ATTENTION_CHECK(
      options.out_proj() || joined == options.d_out(),
      "{}: expected d_out = num_heads * value_dim = {} without out_proj, "
      "but got d_out = {}",
      name,
      joined,
      options.d_out());
}

/// Registers projections, norms and dropout, in the order of Python's class.
/// `d_context` is the input size of keys and values.
template <typename Module>
void reset_heads(Module& module, int64_t d_context) {
  const auto& options = module.options;
  const auto heads = options.num_heads();
  const auto kv_heads = num_kv_heads(options);
  const auto head_dim = head_dim_of(options);
  const auto value_dim = value_dim_of(options);
  const auto project = [&](const char* name,
                           int64_t in,
                           int64_t out,
                           const std::optional<bool>& bias) {
    return module.register_module(
        name, make_linear(in, out, bias.value_or(options.qkv_bias())));
  };
  module.head_dim = head_dim;
  module.W_query = project(
      "W_query", options.d_in(), heads * head_dim, options.query_bias());
  module.W_key =
      project("W_key", d_context, kv_heads * head_dim, options.key_bias());
  module.W_value =
      project("W_value", d_context, kv_heads * value_dim, options.value_bias());
  if (options.out_proj()) {
    module.out_proj = module.register_module(
        "out_proj",
        make_linear(heads * value_dim, options.d_out(), options.out_bias()));
  }
  if (options.qk_norm()) {
    const auto& norm = *options.qk_norm();
    module.q_norm =
        module.register_module("q_norm", HeadNorm(heads, head_dim, norm));
    module.k_norm =
        module.register_module("k_norm", HeadNorm(kv_heads, head_dim, norm));
  }
  module.dropout =
      module.register_module("dropout", torch::nn::Dropout(options.dropout()));
}

template <typename Module>
void reset_parameters_of_heads(const char* name, Module& module) {
  const auto all = PartitionAccess::of(module)->heads().all;
  TORCH_ATTENTION_CHECK(
      all == 0 || all == module.options.num_heads(),
      "{}: expected a whole module to reset its parameters, but got some "
      "of the heads (tensor_parallel), which other processes would draw "
      "alike",
      name);
  module.W_query->reset_parameters();
  module.W_key->reset_parameters();
  module.W_value->reset_parameters();
  if (!module.out_proj.is_empty()) {
    module.out_proj->reset_parameters();
  }
  if (module.options.qk_norm()) {
    module.q_norm->reset_parameters();
    module.k_norm->reset_parameters();
  }
}

/// Prints the sizes of heads of queries and keys that differ from their
/// defaults.
template <typename Options>
void print_sizes(std::ostream& stream, const Options& options) {
  stream << ", num_heads=" << options.num_heads();
  if (num_kv_heads(options) != options.num_heads()) {
    stream << ", num_kv_heads=" << num_kv_heads(options);
  }
  if (options.head_dim()) {
    stream << ", head_dim=" << *options.head_dim();
  }
}

/// Prints which of the projections have a bias, where that is set for them
/// alone.
template <typename Options>
void print_biases(std::ostream& stream, const Options& options) {
  const auto print_flag = [&](const char* name, const std::optional<bool>& x) {
    if (x) {
      stream << ", " << name << "=" << (*x ? "true" : "false");
    }
  };
  print_flag("query_bias", options.query_bias());
  print_flag("key_bias", options.key_bias());
  print_flag("value_bias", options.value_bias());
}

/// Prints the options that differ from their defaults.
template <typename Options>
void print_heads(std::ostream& stream, const Options& options) {
  print_sizes(stream, options);
  if (options.value_dim()) {
    stream << ", value_dim=" << *options.value_dim();
  }
  print_rule(stream, options.rule());
  print_biases(stream, options);
  if (!options.out_proj()) {
    stream << ", out_proj=false";
  } else if (!options.out_bias()) {
    stream << ", out_bias=false";
  }
  if (options.qk_norm()) {
    stream << ", qk_norm=" << options.qk_norm()->kind();
  }
}

template <typename Module>
bool drops_weights(const Module& module) {
  return module.dropout->is_training() && module.dropout->options.p() > 0;
}

/// Checks that no weights are dropped, for `decode`.
template <typename Module>
void check_drops_nothing(const char* name, const Module& module) {
  TORCH_ATTENTION_CHECK(
      !drops_weights(module),
      "{}: expected evaluation for decode, which has no dropout, but got "
      "training with dropout = {}; call eval()",
      name,
      module.dropout->options.p());
}

/// Checks that `module` can decode: causal, without dropout.
template <typename Module>
void check_decodes(const char* name, const Module& module) {
  TORCH_ATTENTION_CHECK(
      module.options.causal(),
      "{}: expected causal = true for decode, since tokens of the past "
      "do not change with those that follow",
      name);
  check_drops_nothing(name, module);
}

/// Returns `func_options` for grouped heads.
template <typename Module>
functional::ScaledDotProductAttentionFuncOptions head_options(
    const Module& module) {
  return func_options(module).enable_gqa(true);
}

/// Projects x (B, T, ...) to (B, num_heads, T, size of a head).
inline torch::Tensor project_to_heads(
    const torch::nn::Linear& projection,
    const torch::Tensor& x,
    int64_t num_heads,
    Kernel kernel) {
  return kernels::split_heads(linear(projection, x, kernel), num_heads);
}

/// Returns the layer of keys or values. If several processes compute the same
/// key heads, the gradients of its parameters are summed over them.
inline kernels::LinearLayer key_layer(
    const torch::nn::Linear& projection,
    const Partition& partition) {
  auto layer = layer_of(projection);
  layer.weight = partition.enter_keys(layer.weight);
  if (layer.bias.defined()) {
    layer.bias = partition.enter_keys(layer.bias);
  }
  return layer;
}

/// Projects x (B, S, ...) to keys or values (B, num_heads, S, size of a head).
inline torch::Tensor project_to_key_heads(
    const torch::nn::Linear& projection,
    const torch::Tensor& x,
    int64_t num_heads,
    Kernel kernel,
    const Partition& partition) {
  const auto layer = key_layer(projection, partition);
  return kernels::split_heads(
      kernels::linear(x, layer.weight, layer.bias, kernel), num_heads);
}

/// Checks that the projection has the outputs of `num_heads` heads: torch::load
/// may have loaded other weights, for example of the heads of all processes.
inline void check_projection(
    const char* name,
    const char* what,
    const torch::nn::Linear& projection,
    int64_t num_heads,
    int64_t head_dim) {
  TORCH_ATTENTION_CHECK(
      projection->weight.size(0) == num_heads * head_dim,
      "{}: expected {} with {} outputs, those of {} heads, but got {}; "
      "load_weights takes the part of a process",
      name,
      what,
      num_heads * head_dim,
      num_heads,
      projection->weight.size(0));
}

/// Projects the context of the heads (B, num_heads, T, value_dim) to (B, T,
/// d_out).
template <typename Module>
torch::Tensor project_out(
    Module& module,
    const torch::Tensor& context,
    Kernel kernel,
    const Partition& partition) {
  const auto combined = kernels::combine_heads(context);
  return module.out_proj.is_empty()
      ? partition.gather(combined)
      : partition.project(combined, layer_of(module.out_proj), kernel);
}

/// Checks that a cache of options `has` has the heads, sizes and device of
/// `module`, and as many sequences as x (B, T, d_in).
template <typename Module>
void check_cache(
    const char* name,
    const Module& module,
    const torch::Tensor& x,
    const KVCacheOptions& has) {
  const auto kv_heads = num_kv_heads(module.options);
  const auto value_dim = value_dim_of(module.options);
  TORCH_ATTENTION_CHECK(
      has.num_kv_heads() == kv_heads && has.head_dim() == module.head_dim &&
          has.value_dim().value_or(has.head_dim()) == value_dim,
      "{}: expected a cache of num_kv_heads = {}, head_dim = {} and "
      "value_dim = {}, but got {}, {} and {}; make_cache makes one that "
      "fits",
      name,
      kv_heads,
      module.head_dim,
      value_dim,
      has.num_kv_heads(),
      has.head_dim(),
      has.value_dim().value_or(has.head_dim()));
  const auto& weight = module.W_key->weight;
  TORCH_ATTENTION_CHECK(
      has.device() == weight.device(),
      "{}: expected a cache on {}, where the weights are, but got one on {}",
      name,
      weight.device(),
      has.device());
  TORCH_ATTENTION_CHECK(
      x.size(0) == has.batch_size(),
      "{}: expected input of as many sequences as the cache has, {}, but "
      "got {}",
      name,
      has.batch_size(),
      x.size(0));
}

/// Returns the options of a cache for `module`, with the dtype and device of
/// its weights.
template <typename Module>
KVCacheOptions cache_options(const Module& module, int64_t batch_size) {
  const auto& weight = module.W_key->weight;
  return KVCacheOptions(
             batch_size, num_kv_heads(module.options), module.head_dim)
      .value_dim(value_dim_of(module.options))
      .dtype(weight.scalar_type())
      .device(weight.device());
}

} // namespace torch_attention::detail
