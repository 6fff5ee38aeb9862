#include <kernels/tiled.h>

#include <cpu/attention.h>
#include <kernels/backward_node.h>
#include <kernels/block_mask.h>
#include <kernels/elements.h>
#include <kernels/heads.h>
#include <kernels/plain.h>
#include <kernels/sequences.h>
#include <kernels/threads.h>
#include <torch_attention/same_bits.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <mutex>

namespace torch_attention::kernels {

namespace {

/// Returns an empty (B, heads, T, D) in the memory layout that the projection
/// after attention reads: (B, T, heads, D).
torch::Tensor empty_heads(
    const torch::Tensor& like,
    int64_t heads,
    int64_t tokens,
    int64_t head_dim) {
  return at::empty({like.size(0), tokens, heads, head_dim}, like.options())
      .transpose(1, 2);
}

torch::Tensor empty_output(const Attention& a, OutputLayout layout) {
  const auto& query = a.query;
  const auto E = a.value.size(3);
  switch (layout) {
    case OutputLayout::kLikeQuery:
      return at::empty_like(query);
    case OutputLayout::kHeadsFirst:
      return at::empty(
          {query.size(0), query.size(1), query.size(2), E}, query.options());
    default:
      return empty_heads(query, query.size(1), query.size(2), E);
  }
}

template <typename X>
cpu::Scores<const X> read_scores(const torch::Tensor& x) {
  if (!x.defined()) {
    return {};
  }
  return {data_of<X>(x), x.stride(0), x.stride(1), x.stride(2), x.stride(3)};
}

/// Returns maximum and sum, one after the other in `n` numbers.
template <typename T>
cpu::RowStatistics<T> rows_of(T* statistics, int64_t n) {
  return {statistics, statistics + n / 2};
}

/// Sets the arguments of keys and values of int8, in place of others.
template <typename X>
void read_int8(
    const Int8Keys& int8,
    const KeyBlocks* blocks,
    cpu::AttentionArguments<X>& arguments) {
  const auto rows_of_heads = [&](const torch::Tensor& x, int64_t token) {
    return blocks == nullptr
        ? read<int8_t>(x)
        : cpu::Heads<const int8_t>{nullptr, {0, blocks->size * token, token}};
  };
  arguments.key = {};
  arguments.value = {};
  arguments.int8_key = {
      rows_of_heads(int8.keys, blocks == nullptr ? 0 : blocks->key_token),
      int8.key_scale};
  arguments.int8_value = {
      rows_of_heads(int8.values, blocks == nullptr ? 0 : blocks->value_token),
      int8.value_scale};
}

/// Returns the kernels' arguments for `a`, which `prepared` returned.
template <typename X>
cpu::AttentionArguments<X> arguments_of(
    const Attention& a,
    uint64_t dropout_seed) {
  cpu::AttentionArguments<X> arguments;
  arguments.batch_size = a.query.size(0);
  arguments.num_heads = a.query.size(1);
  arguments.num_kv_heads = a.key.size(1);
  arguments.num_queries = a.query.size(2);
  arguments.num_keys = a.key.size(2);
  arguments.head_dim = a.query.size(3);
  arguments.value_dim = a.value.size(3);
  arguments.query = read<X>(a.query);
  arguments.key = read<X>(a.key);
  arguments.value = read<X>(a.value);
  if (a.int8 != nullptr) {
    read_int8(*a.int8, a.blocks, arguments);
  }
  if (a.blocks != nullptr) {
    const auto& blocks = *a.blocks;
    arguments.blocks = {
        blocks.keys.data(), blocks.values.data(), blocks.row, blocks.size};
    arguments.key = {
        nullptr, {0, blocks.size * blocks.key_token, blocks.key_token}};
    arguments.value = {
        nullptr, {0, blocks.size * blocks.value_token, blocks.value_token}};
  }
  arguments.rule = a.rule;
  // Computed once, since it takes a root.
  arguments.rule.scale = a.rule.factor(a.query.size(3));
  arguments.alibi_slopes = data_of<cpu::Compute<X>>(a.alibi_slopes);
  arguments.sinks = data_of<cpu::Compute<X>>(a.sinks);
  arguments.query_offsets = data_of<int64_t>(a.query_offsets);
  arguments.key_lengths = data_of<int64_t>(a.key_lengths);
  if (a.bias.defined() && a.bias.scalar_type() != a.query.scalar_type()) {
    arguments.wide_bias = read_scores<cpu::Compute<X>>(a.bias);
  } else {
    arguments.bias = read_scores<X>(a.bias);
  }
  arguments.mask = read_scores<bool>(a.mask);
  arguments.mask_tiles = tiles_of(a.block_mask);
  arguments.same_bits = same_bits();
  arguments.dropout = a.dropout;
  arguments.dropout_seed = dropout_seed;
  arguments.dropout_first_head = a.heads.first;
  arguments.dropout_num_heads = a.heads.all;
  arguments.dropout_first_query = a.tokens.first_query;
  arguments.dropout_first_key = a.tokens.first_key;
  if (is_packed(a)) {
    arguments.num_sequences = a.query_starts.size(0) - 1;
    arguments.query_starts = data_of<int64_t>(a.query_starts);
    arguments.key_starts = data_of<int64_t>(a.key_starts);
  }
  return arguments;
}

} // namespace

TiledResults run_forward(
    const Attention& a,
    uint64_t dropout_seed,
    Statistics wanted,
    OutputLayout layout) {
  // Tensors allocated here need no tracking of views.
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto& query = a.query;
  TiledResults results;
  results.dropout_seed = dropout_seed;
  results.output = empty_output(a, layout);
  const bool with_statistics = wanted != Statistics::kNone;
  if (with_statistics) {
    results.statistics = at::empty(
        {2, query.size(0), query.size(1), query.size(2)},
        query.options().dtype(compute_dtype(query.scalar_type())));
  }
  with_element(query.scalar_type(), [&](auto element) {
    using X = decltype(element);
    using T = cpu::Compute<X>;
    const auto& statistics = results.statistics;
    auto arguments = arguments_of<X>(a, dropout_seed);
    arguments.has_backward = wanted == Statistics::kForBackward;
    cpu::forward(
        arguments,
        write<X>(results.output),
        with_statistics
            ? rows_of(statistics.mutable_data_ptr<T>(), statistics.numel())
            : cpu::RowStatistics<T>(),
        threads());
  });
  return results;
}

variable_list run_backward(
    const Attention& a,
    const TiledResults& results,
    const BackwardRequest& request) {
  const bool with_bias = request.wanted[kBias];
  const auto gradient_of = [](const torch::Tensor& x) {
    return empty_heads(x, x.size(1), x.size(2), x.size(3));
  };
  const auto grad_query = gradient_of(a.query);
  const auto grad_key = gradient_of(a.key);
  const auto grad_value = gradient_of(a.value);
  const auto sums_for = [&](Input input, const torch::Tensor& x) {
    return request.wanted[input] ? at::empty_like(x) : torch::Tensor();
  };
  const auto grad_slopes = sums_for(kSlopes, a.alibi_slopes);
  const auto grad_sinks = sums_for(kSinks, a.sinks);
  torch::Tensor grad_bias;
  if (with_bias) {
    grad_bias = at::zeros(
        a.bias.sizes(),
        a.query.options().dtype(compute_dtype(a.query.scalar_type())));
  }
  const auto grad_rows = with_contiguous_rows(request.grad_output);
  with_element(a.query.scalar_type(), [&](auto element) {
    using X = decltype(element);
    cpu::BackwardArguments<X> gradients;
    gradients.output = read<X>(results.output);
    gradients.statistics = rows_of(
        results.statistics.const_data_ptr<cpu::Compute<X>>(),
        results.statistics.numel());
    gradients.grad_output = read<X>(grad_rows);
    gradients.grad_query = write<X>(grad_query);
    gradients.grad_key = write<X>(grad_key);
    gradients.grad_value = write<X>(grad_value);
    const auto write_sums = [](const torch::Tensor& x) {
      return x.defined() ? x.mutable_data_ptr<cpu::Compute<X>>() : nullptr;
    };
    gradients.grad_alibi_slopes = write_sums(grad_slopes);
    gradients.grad_sinks = write_sums(grad_sinks);
    if (with_bias) {
      gradients.grad_bias = {
          write_sums(grad_bias),
          grad_bias.stride(0),
          grad_bias.stride(1),
          grad_bias.stride(2),
          grad_bias.stride(3)};
    }
    cpu::backward(
        arguments_of<X>(a, results.dropout_seed), gradients, threads());
  });
  variable_list gradients(request.wanted.size());
  gradients[kQuery] = grad_query;
  gradients[kKey] = grad_key;
  gradients[kValue] = grad_value;
  gradients[kBias] = grad_bias;
  gradients[kSlopes] = grad_slopes;
  gradients[kSinks] = grad_sinks;
  return gradients;
}

namespace {

/// Returns the dropout mask (B, H, T, S): factors of the weights, 0 where they
/// are dropped. The kernels draw it again: with equal scores and the identity
/// matrix as values, the output is the weights.
torch::Tensor kept_weights(const Attention& attention, uint64_t dropout_seed) {
  const torch::NoGradGuard no_grad;
  const auto S = attention.key.size(2);
  const auto sizes = attention.query.sizes();
  const auto options =
      at::TensorOptions(compute_dtype(attention.query.scalar_type()));
  if (S == 0) {
    return at::zeros({sizes[0], sizes[1], sizes[2], 0}, options);
  }
  Attention a;
  a.dropout = attention.dropout;
  a.heads = attention.heads;
  a.tokens = attention.tokens;
  a.query = at::zeros({sizes[0], sizes[1], sizes[2], 1}, options);
  a.key = at::zeros({sizes[0], 1, S, 1}, options);
  a.value = at::eye(S, options).expand({sizes[0], 1, S, S});
  const auto results = run_forward(
      a, dropout_seed, Statistics::kNone, OutputLayout::kHeadsFirst);
  return (results.output * S).to(attention.query.scalar_type());
}

/// Inputs are all `tensors_of` the attention; saved with them are output and
/// statistics.
struct TiledBackward {
  static constexpr const char* kName = "TiledAttentionBackward";

  ScoreRule rule;
  double dropout = 0.0;
  SharedHeads heads;
  SharedTokens tokens;
  uint64_t dropout_seed = 0;
  SavedOutput output;

  variable_list operator()(const BackwardRequest& request) const {
    const auto a = attention_of(request.saved);
    const auto n = tensors_of(a).size();
    if (!request.by_operators) {
      const TiledResults saved{
          request.saved[n], request.saved[n + 1], dropout_seed};
      return run_backward(
          a, output.is_changed() ? computed_again(a) : saved, request);
    }
    const auto output_of = [&](const Attention& one) {
      const auto kept =
          dropout > 0 ? kept_weights(one, dropout_seed) : torch::Tensor();
      return reference(one, kept);
    };
    const auto& x = request.saved;
    return differentiable_gradients(
        {x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n)},
        request,
        [&](const variable_list& inputs) {
          const auto again = attention_of(inputs);
          return is_packed(again) ? by_sequences(again, output_of)
                                  : output_of(again);
        });
  }

 private:
  TiledResults computed_again(const Attention& a) const {
    return run_forward(
        a, dropout_seed, Statistics::kForBackward, OutputLayout::kTokensFirst);
  }

  /// Returns the attention of the first of `tensors`.
  Attention attention_of(const variable_list& tensors) const {
    Attention a;
    a.rule = rule;
    a.dropout = dropout;
    a.heads = heads;
    a.tokens = tokens;
    size_t next = 0;
    for (auto* x : tensors_of(a)) {
      *x = tensors[next++];
    }
    return a;
  }
};

} // namespace

Attention prepared(const Attention& attention) {
  auto a = attention;
  for (auto* x : {&a.query, &a.key, &a.value}) {
    *x = to_rank_4(*x);
    if (at::autocast::is_autocast_enabled(at::kCPU)) {
      *x = at::autocast::cached_cast(
          at::autocast::get_autocast_dtype(at::kCPU), *x, at::kCPU);
    }
    *x = with_contiguous_rows(*x);
  }
  std::array<int64_t, 4> scores = {
      a.query.size(0), a.query.size(1), a.query.size(2), a.key.size(2)};
  if (is_packed(a)) {
    scores[0] = a.query_starts.size(0) - 1;
    scores[2] = longest_sequence(a.query_starts);
    scores[3] = longest_sequence(a.key_starts);
  }
  const auto as_scores = [&](const torch::Tensor& x) {
    return scores_to_rank_4(x, attention.query).expand(scores);
  };
  if (a.mask.defined()) {
    a.mask = as_scores(a.mask);
  }
  if (a.bias.defined()) {
    // Half precision would round a bias with more bits, and gradients before
    // they are summed over the dimensions that the bias is broadcast along.
    const auto dtype = a.query.scalar_type();
    const bool keeps_dtype =
        a.bias.scalar_type() == dtype && !is_recorded({&a.bias});
    a.bias = as_scores(keeps_dtype ? a.bias : a.bias.to(compute_dtype(dtype)));
  }
  for (auto* x : {&a.alibi_slopes, &a.sinks}) {
    if (x->defined()) {
      // Autocast may have changed the query's dtype.
      *x = x->to(compute_dtype(a.query.scalar_type())).contiguous();
    }
  }
  // The kernels read them as contiguous numbers.
  if (a.key_lengths.defined()) {
    a.key_lengths = a.key_lengths.contiguous();
  }
  if (a.query_offsets.defined()) {
    a.query_offsets = a.query_offsets.contiguous();
  }
  return a;
}

namespace {

/// Records the output (B, H, T, Dv) of `results` as the output of `a`, which
/// `prepared` returned, in autograd's graph.
void record(const Attention& a, const TiledResults& results) {
  const auto numbers = SavedOutput::numbers(results.output);
  record_backward(
      TiledBackward{
          a.rule,
          a.dropout,
          a.heads,
          a.tokens,
          results.dropout_seed,
          SavedOutput(results.output)},
      results.output,
      tensors_of(a),
      {&numbers, &results.statistics});
}

} // namespace

uint64_t draw_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

bool is_tiled(const Attention& a) {
  if (!has_element(a.query.scalar_type())) {
    return false;
  }
  for (const auto* x : tensors_of(a)) {
    if (x->defined() && !is_plain(*x)) {
      return false;
    }
  }
  return !is_traced();
}

torch::Tensor tiled(const Attention& attention, OutputLayout layout) {
  const auto a = prepared(attention);
  const auto dropout_seed = a.dropout > 0 ? draw_seed() : 0;
  const bool recorded = is_recorded(tensors_of(a));
  const auto results = run_forward(
      a,
      dropout_seed,
      recorded ? Statistics::kForBackward : Statistics::kNone,
      layout);
  if (recorded) {
    record(a, results);
  }
  return from_rank_4(results.output, attention.query);
}

torch::Tensor tiled(const Attention& attention) {
  return tiled(attention, OutputLayout::kTokensFirst);
}

TiledResults tiled_forward(const Attention& attention) {
  const torch::NoGradGuard no_grad;
  const auto a = prepared(attention);
  const auto dropout_seed = a.dropout > 0 ? draw_seed() : 0;
  auto results = run_forward(
      a, dropout_seed, Statistics::kForBackward, OutputLayout::kTokensFirst);
  results.output = from_rank_4(results.output, attention.query);
  results.statistics = results.statistics.flatten();
  return results;
}

torch::Tensor tiled_recorded(
    const Attention& attention,
    const TiledResults& results) {
  auto rank_4 = results;
  rank_4.output = to_rank_4(results.output.detach());
  record(prepared(attention), rank_4);
  return from_rank_4(rank_4.output, attention.query);
}

} // namespace torch_attention::kernels
