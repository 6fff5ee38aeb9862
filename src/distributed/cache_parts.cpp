#include <distributed/cache_parts.h>

#include <distributed/communication.h>
#include <distributed/ring_blocks.h>
#include <kernels/elements.h>
#include <nn/cache_state.h>
#include <nn/functional/checked_attention.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace torch_attention::distributed {

namespace {

using FuncOptions = functional::ScaledDotProductAttentionFuncOptions;

/// The number of queries in a piece. Few enough for small masks, and to skip
/// most keys after a query.
constexpr int64_t kMostQueries = 256;

/// A range of queries, and the rows of the cache that they see.
struct Piece {
  int64_t begin = 0;
  int64_t end = 0;
  /// The first row in the cache, and the number of rows.
  int64_t row = 0;
  int64_t num_rows = 0;
  /// The positions of queries (B or 1, 1, T, 1) and of keys (S), int64.
  torch::Tensor queries;
  torch::Tensor keys;
  /// Whether all queries see all rows.
  bool sees_all = false;
};

/// Returns the number of tokens before `position` in this part of the cache.
int64_t rows_before(const KVCache& cache, int64_t position) {
  const auto parts = cache.options().num_parts();
  return (position + parts - 1 - cache.options().part()) / parts;
}

Piece piece_of(
    const KVCache& cache,
    const torch::Tensor& first,
    int64_t begin,
    int64_t end,
    const FuncOptions& options) {
  Piece piece;
  piece.begin = begin;
  piece.end = end;
  const auto least = first.min().item<int64_t>();
  const auto most = first.max().item<int64_t>();
  const auto at = least + begin;
  int64_t seen = 0;
  if (options.window() && *options.window() <= at) {
    seen = at - *options.window() + 1;
  }
  if (options.chunk()) {
    seen = std::max(seen, at - at % *options.chunk());
  }
  const auto last = std::min(
      detail::CacheState::num_rows(cache), rows_before(cache, most + end));
  piece.row = std::min(rows_before(cache, seen), last);
  piece.num_rows = last - piece.row;
  const auto starts = least == most ? first.narrow(0, 0, 1) : first;
  piece.queries =
      (starts.unsqueeze(1) + torch::arange(begin, end, torch::kLong))
          .view({-1, 1, end - begin, 1});
  piece.keys = torch::arange(piece.row, last, torch::kLong) *
          cache.options().num_parts() +
      cache.options().part();
  piece.sees_all = least == most && end - begin == 1;
  return piece;
}

/// Returns a mask, true hides: (B or 1, 1, T, S); undefined if nothing is
/// hidden.
torch::Tensor hidden_in(const Piece& piece, const FuncOptions& options) {
  if (piece.sees_all) {
    return {};
  }
  auto hidden = piece.keys > piece.queries;
  if (options.window()) {
    hidden = hidden.bitwise_or(piece.keys <= piece.queries - *options.window());
  }
  if (options.chunk()) {
    const auto chunk_of = [&](const torch::Tensor& positions) {
      return torch::div(positions, *options.chunk(), "floor");
    };
    hidden = hidden.bitwise_or(chunk_of(piece.keys) != chunk_of(piece.queries));
  }
  return hidden;
}

/// Returns the bias of the call plus the ALiBi bias.
torch::Tensor added_in(
    const Piece& piece,
    const KVCache& cache,
    const FuncOptions& options) {
  auto added = options.bias();
  if (added.defined() && added.size(-2) != 1) {
    added = added.narrow(-2, piece.begin, piece.end - piece.begin);
  }
  if (added.defined() && added.size(-1) != 1) {
    added = added.index_select(-1, piece.keys);
  }
  if (options.alibi_slopes().defined()) {
    const auto dtype = kernels::compute_dtype(cache.options().dtype());
    const auto by_distance =
        options.alibi_slopes().to(dtype).neg().view({-1, 1, 1}) *
        (piece.queries - piece.keys).abs();
    added = added.defined() ? added + by_distance : by_distance;
  }
  return added;
}

} // namespace

torch::Tensor attention_of_key_parts(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Group& group,
    const FuncOptions& options) {
  const torch::NoGradGuard no_grad;
  auto of_parts = options;
  of_parts.rule(options.rule().without_positions()).alibi_slopes({});
  const auto a =
      functional::detail::checked_attention(query, key, value, of_parts);
  TORCH_CHECK(
      kernels::is_tiled(a),
      "decode: expected, where several processes share the keys, plain tensors "
      "of float32, float64, bfloat16 or float16");
  RingCall call;
  call.rule = a.rule;
  call.sinks = a.sinks;
  call.key_lengths = a.key_lengths;
  call.mask = options.mask();
  call.bias = options.bias();
  call.queries = {{0, query.size(2)}};
  const auto E = value.size(3);
  auto sums = no_keys(query, E);
  add_keys(call, query, key, value, {0, key.size(2)}, sums);
  // In one message: output, maximum and sum of each row.
  const auto own = torch::cat(
      {sums.output, sums.maximum.unsqueeze(-1), sums.sum.unsqueeze(-1)}, -1);
  const auto parts = all_gather(group, own, "the joining of parts of keys");
  auto whole = joined(
      {parts.narrow(-1, 0, E), parts.select(-1, E), parts.select(-1, E + 1)});
  add_sinks(call, whole);
  return whole.output.to(query.scalar_type());
}

torch::Tensor attend_to_cache_parts(
    const Group& group,
    const torch::Tensor& queries,
    const KVCache& cache,
    const torch::Tensor& first,
    const FuncOptions& options) {
  const auto keys = cache.keys();
  const auto values = cache.values();
  const auto T = queries.size(2);
  const auto in_cache = queries.to(keys.scalar_type());
  const auto rows = torch::div(
      cache.lengths() +
          (cache.options().num_parts() - 1 - cache.options().part()),
      cache.options().num_parts(),
      "floor");
  std::vector<torch::Tensor> contexts = {
      queries.new_empty({queries.size(0), queries.size(1), 0, values.size(3)})};
  for (int64_t begin = 0; begin < T; begin += kMostQueries) {
    const auto end = std::min(T, begin + kMostQueries);
    const auto piece = piece_of(cache, first, begin, end, options);
    auto own = options;
    own.mask(hidden_in(piece, options))
        .bias(added_in(piece, cache, options))
        .key_lengths((rows - piece.row).clamp(0, piece.num_rows));
    const auto context = attention_of_key_parts(
        in_cache.narrow(2, begin, end - begin),
        keys.narrow(2, piece.row, piece.num_rows),
        values.narrow(2, piece.row, piece.num_rows),
        group,
        own);
    contexts.push_back(context.to(queries.scalar_type()));
  }
  return torch::cat(contexts, 2);
}

} // namespace torch_attention::distributed
