#include <distributed/ring_blocks.h>

#include <kernels/elements.h>
#include <kernels/positions.h>
#include <kernels/tiled.h>

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <limits>

namespace torch_attention::distributed {

namespace {

using kernels::Attention;

/// A score whose weight is 0, whatever the other scores are.
constexpr double kNoWeight = -std::numeric_limits<double>::infinity();

/// Returns the part of a mask or bias (..., T or 1, S or 1) for a block.
torch::Tensor part_of_scores(
    const torch::Tensor& x,
    int64_t row,
    int64_t rows,
    const Span& keys) {
  if (!x.defined()) {
    return x;
  }
  const auto some_rows = x.size(-2) == 1 ? x : x.narrow(-2, row, rows);
  return x.size(-1) == 1 ? some_rows
                         : some_rows.narrow(-1, keys.start, keys.size());
}

/// Returns a mask, true where query and key are in different chunks.
torch::Tensor hidden_by_chunks(
    const Span& queries,
    const Span& keys,
    int64_t chunk) {
  const auto chunks = [&](const Span& span) {
    return torch::div(
        torch::arange(span.start, span.end, torch::kLong), chunk, "floor");
  };
  return chunks(queries).unsqueeze(1) != chunks(keys);
}

/// One of the spans of queries, and a part of the keys that it sees.
struct Block {
  /// The index of the first query in the tensors.
  int64_t row = 0;
  Span queries;
  /// The positions of the keys in the sequence.
  Span keys;
  Attention attention;
};

/// Returns the blocks of this process's queries and the keys at `span`.
std::vector<Block> blocks_of(
    const RingCall& call,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Span& span) {
  std::vector<Block> blocks;
  int64_t row = 0;
  for (const auto& queries : call.queries) {
    const auto first_row = row;
    row += queries.size();
    const auto keys = seen_keys(call, {queries}, span);
    if (keys.size() <= 0 || queries.size() == 0) {
      continue;
    }
    const auto n = keys.size();
    Attention a;
    a.rule = call.rule;
    a.dropout = call.dropout;
    a.tokens = {queries.start, keys.start};
    a.query = query.narrow(2, first_row, queries.size());
    a.key = key.narrow(2, keys.start - span.start, n);
    a.value = value.narrow(2, keys.start - span.start, n);
    a.mask = part_of_scores(call.mask, first_row, queries.size(), keys);
    a.bias = part_of_scores(call.bias, first_row, queries.size(), keys);
    if (call.rule.chunk && keys.start % *call.rule.chunk != 0) {
      // The kernels count chunks from the first key on.
      const auto hidden = hidden_by_chunks(queries, keys, *call.rule.chunk);
      a.mask = a.mask.defined() ? a.mask.bitwise_or(hidden) : hidden;
      a.rule.chunk = std::nullopt;
    }
    const auto offset = queries.start - keys.start;
    a.query_offsets = torch::full({query.size(0)}, offset, torch::kLong);
    if (call.key_lengths.defined()) {
      a.key_lengths = (call.key_lengths - keys.start).clamp(0, n);
    }
    if (n == 1) {
      // The kernels take the weight of a single key for 1, and its gradient for
      // 0. Here there are keys in other parts: add a second one that is hidden.
      a.key = torch::cat({a.key, a.key}, 2);
      a.value = torch::cat({a.value, a.value}, 2);
      if (!a.key_lengths.defined()) {
        a.key_lengths = torch::ones({query.size(0)}, torch::kLong);
      }
    }
    if (call.alibi_slopes.defined()) {
      a.alibi_slopes = call.alibi_slopes;
      // Only with sinks do the kernels measure distances beyond their own keys:
      // add some without weight.
      a.sinks = torch::full_like(call.alibi_slopes, kNoWeight);
    }
    blocks.push_back({first_row, queries, keys, kernels::prepared(a)});
  }
  return blocks;
}

/// Returns exp(x - y), and 0 if x is -inf, even if y is -inf, too.
torch::Tensor ratio(const torch::Tensor& x, const torch::Tensor& y) {
  return torch::where(x.isneginf(), torch::zeros_like(x), (x - y).exp());
}

/// Returns the maximum, or -inf where there is no key.
torch::Tensor true_maximum(
    const torch::Tensor& maximum,
    const torch::Tensor& sum) {
  return maximum.masked_fill(
      sum == 0, -std::numeric_limits<double>::infinity());
}

} // namespace

Span seen_keys(
    const RingCall& call,
    const std::vector<Span>& queries,
    const Span& keys) {
  Span seen{keys.end, keys.start};
  for (const auto& span : queries) {
    if (span.size() == 0) {
      continue;
    }
    const auto visible = kernels::visible_keys(
        call.rule, span.start, span.size(), /*num_keys=*/keys.end);
    auto start = std::max(keys.start, visible.first);
    const auto end = visible.second;
    if (call.dropout > 0) {
      start -= start % kDropoutKeys;
    }
    if (start < end) {
      seen.start = std::min(seen.start, start);
      seen.end = std::max(seen.end, end);
    }
  }
  return seen.start < seen.end ? seen : Span{keys.start, keys.start};
}

RowSums no_keys(const torch::Tensor& query, int64_t E) {
  const auto options =
      query.options().dtype(kernels::compute_dtype(query.scalar_type()));
  const auto rows = {query.size(0), query.size(1), query.size(2)};
  return {
      torch::zeros({query.size(0), query.size(1), query.size(2), E}, options),
      torch::zeros(rows, options),
      torch::zeros(rows, options)};
}

void add_keys(
    const RingCall& call,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Span& span,
    RowSums& sums) {
  for (const auto& block : blocks_of(call, query, key, value, span)) {
    const auto results = kernels::run_forward(
        block.attention,
        call.dropout_seed,
        kernels::Statistics::kForBackward,
        kernels::OutputLayout::kHeadsFirst);
    const auto rows = [&](const torch::Tensor& x) {
      return x.narrow(2, block.row, block.queries.size());
    };
    const auto sum = results.statistics[1];
    const auto own = true_maximum(results.statistics[0], sum);
    const auto old = true_maximum(rows(sums.maximum), rows(sums.sum));
    const auto maximum = own.maximum(old);
    const auto old_sum = rows(sums.sum) * ratio(old, maximum);
    const auto own_sum = sum * ratio(own, maximum);
    const auto total = old_sum + own_sum;
    // Without any key, divide 0 by 1.
    const auto of = total.masked_fill(total == 0, 1);
    rows(sums.output)
        .mul_((old_sum / of).unsqueeze(-1))
        .add_(results.output * (own_sum / of).unsqueeze(-1));
    rows(sums.maximum).copy_(maximum.masked_fill(total == 0, 0));
    rows(sums.sum).copy_(total);
  }
}

RowSums joined(const RowSums& parts) {
  const auto of_part = true_maximum(parts.maximum, parts.sum);
  const auto maximum = of_part.amax(0);
  const auto sum = parts.sum * ratio(of_part, maximum);
  const auto total = sum.sum(0);
  const auto no_key = total == 0;
  const auto share = sum / total.masked_fill(no_key, 1);
  return {
      (parts.output * share.unsqueeze(-1)).sum(0),
      maximum.masked_fill(no_key, 0),
      total};
}

void add_sinks(const RingCall& call, RowSums& sums) {
  if (!call.sinks.defined()) {
    return;
  }
  const auto sinks = call.sinks.to(sums.sum.scalar_type()).unsqueeze(1);
  const auto maximum = sums.maximum.maximum(sinks);
  const auto keys = sums.sum * (sums.maximum - maximum).exp();
  const auto total = keys + (sinks - maximum).exp();
  const auto no_key = sums.sum == 0;
  sums.output.mul_((keys / total).unsqueeze(-1));
  sums.maximum.copy_(maximum.masked_fill(no_key, 0));
  sums.sum.copy_(total.masked_fill(no_key, 0));
}

KeyGradients gradients_of_keys(
    const RingCall& call,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Span& span,
    const RowSums& sums,
    const torch::Tensor& grad_output,
    const QueryGradients& of_queries) {
  KeyGradients result{
      torch::zeros_like(key, torch::MemoryFormat::Contiguous),
      torch::zeros_like(value, torch::MemoryFormat::Contiguous)};
  for (const auto& block : blocks_of(call, query, key, value, span)) {
    const auto rows = [&](const torch::Tensor& x) {
      return x.narrow(2, block.row, block.queries.size());
    };
    kernels::TiledResults results;
    results.output = rows(sums.output).to(query.scalar_type());
    results.statistics = torch::stack({rows(sums.maximum), rows(sums.sum)});
    results.dropout_seed = call.dropout_seed;
    kernels::BackwardRequest request;
    request.grad_output = rows(grad_output);
    request.wanted.resize(kernels::tensors_of(block.attention).size());
    for (const auto input : {kernels::kQuery, kernels::kKey, kernels::kValue}) {
      request.wanted[input] = true;
    }
    request.wanted[kernels::kBias] = of_queries.bias.defined();
    request.wanted[kernels::kSlopes] = of_queries.slopes.defined();
    const auto gradients =
        kernels::run_backward(block.attention, results, request);
    rows(of_queries.query).add_(gradients[kernels::kQuery]);
    if (of_queries.slopes.defined()) {
      of_queries.slopes.add_(gradients[kernels::kSlopes]);
    }
    const auto n = block.keys.size();
    if (of_queries.bias.defined()) {
      const auto part = part_of_scores(
          of_queries.bias, block.row, block.queries.size(), block.keys);
      part.add_(
          at::sum_to(gradients[kernels::kBias].narrow(3, 0, n), part.sizes()));
    }
    const auto add = [&](const torch::Tensor& to, const torch::Tensor& from) {
      to.narrow(2, block.keys.start - span.start, n).add_(from.narrow(2, 0, n));
    };
    add(result.key, gradients[kernels::kKey]);
    add(result.value, gradients[kernels::kValue]);
  }
  return result;
}

torch::Tensor gradient_of_sinks(
    const RingCall& call,
    const RowSums& sums,
    const torch::Tensor& grad_output) {
  const auto dtype = sums.sum.scalar_type();
  const auto sinks = call.sinks.to(dtype).unsqueeze(1);
  const auto no_key = sums.sum == 0;
  const auto weight =
      ((sinks - sums.maximum).exp() / sums.sum.masked_fill(no_key, 1))
          .masked_fill(no_key, 0);
  const auto mean = (grad_output.to(dtype) * sums.output).sum(-1);
  return (weight * mean).sum(2).sum(0).neg().to(call.sinks.scalar_type());
}

} // namespace torch_attention::distributed
