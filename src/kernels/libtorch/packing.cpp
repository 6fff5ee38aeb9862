#include <kernels/libtorch/packing.h>

#include <kernels/backward_node.h>
#include <kernels/sequences.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace torch_attention::kernels {

namespace {

constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();

/// Keys and values of all sequences as rows: (1, N, G, D). Sequence b has those
/// from `b * distance` on.
struct KeyRows {
  torch::Tensor key;
  torch::Tensor value;
  int64_t distance;
};

/// Returns the number of rows between two sequences of x (B, S, G, D), if its
/// memory can be read as such rows; else 0.
int64_t distance_of(const torch::Tensor& x) {
  if (x.size(0) == 1) {
    return x.size(1);
  }
  const auto row = x.stride(1);
  return row > 0 && x.stride(0) % row == 0 && x.stride(0) / row >= x.size(1)
      ? x.stride(0) / row
      : 0;
}

/// Returns keys and values (B, G, S, D) as rows. With `may_have_gaps` they are
/// views of a cache, whose rows between two sequences are of other heads.
KeyRows key_rows(
    const torch::Tensor& key,
    const torch::Tensor& value,
    bool may_have_gaps) {
  const auto keys = key.transpose(1, 2);
  const auto values = value.transpose(1, 2);
  const auto S = keys.size(1);
  const auto distance = distance_of(keys);
  const bool viewed = may_have_gaps && distance > S &&
      distance == distance_of(values) && distance <= kMostRows / keys.size(0);
  const auto as_rows = [&](const torch::Tensor& x) {
    const auto B = x.size(0);
    if (!viewed) {
      return x.reshape({1, B * S, x.size(2), x.size(3)});
    }
    const auto rows = (B - 1) * distance + S;
    return x.as_strided(
        {1, rows, x.size(2), x.size(3)},
        {rows * x.stride(1), x.stride(1), x.stride(2), x.stride(3)},
        x.storage_offset());
  };
  return {as_rows(keys), as_rows(values), viewed ? distance : S};
}

torch::Tensor query_rows(const torch::Tensor& query) {
  const auto x = query.transpose(1, 2);
  return x.reshape({1, x.size(0) * x.size(1), x.size(2), x.size(3)});
}

torch::Tensor on_device(const std::vector<int32_t>& x, torch::Device device) {
  return sent_to(device, at::tensor(x, torch::kInt));
}

bool is_recorded_in(const Attention& a) {
  return is_recorded(tensors_of(a));
}

FusedAttention with_operands(
    const FusedCall& call,
    const Operands& x,
    const torch::Tensor& query,
    const KeyRows& keys) {
  FusedAttention result;
  result.call = call;
  result.call.query = query;
  result.call.key = keys.key;
  result.call.value = keys.value;
  result.rows.sinks = x.sinks;
  return result;
}

/// Where chunks, one after the other, begin and end.
struct Starts {
  std::vector<int32_t> queries;
  std::vector<int32_t> keys;
  std::vector<int32_t> keys_used;

  void add(int64_t query, int64_t key, int64_t used) {
    queries.push_back(static_cast<int32_t>(query));
    keys.push_back(static_cast<int32_t>(key));
    keys_used.push_back(static_cast<int32_t>(used));
  }

  void end(int64_t query, int64_t key) {
    queries.push_back(static_cast<int32_t>(query));
    keys.push_back(static_cast<int32_t>(key));
  }

  /// Returns whether the keys of each chunk end where the next ones begin.
  bool have_no_gaps() const {
    for (size_t i = 0; i < keys_used.size(); ++i) {
      if (keys[i] + keys_used[i] != keys[i + 1]) {
        return false;
      }
    }
    return true;
  }
};

} // namespace

FusedAttention pack_sequences(
    const Attention& a,
    const Operands& x,
    const FusedCall& call) {
  auto result = with_operands(
      call,
      x,
      x.query.transpose(1, 2),
      {x.key.transpose(1, 2), x.value.transpose(1, 2), 0});
  const auto device = x.query.device();
  const auto starts = [&](const torch::Tensor& of_tokens) {
    return sent_to(device, of_tokens.to(torch::kInt));
  };
  auto longest = longest_sequence(a.query_starts);
  if (longest == 1 && x.query.size(2) != a.query_starts.size(0) - 1) {
    // Flash takes 1 for one query in each sequence.
    longest = 2;
  }
  result.call.packed = PackedStarts{
      starts(a.query_starts),
      starts(a.key_starts),
      {},
      longest,
      longest_sequence(a.key_starts)};
  result.query_starts = a.query_starts;
  result.key_starts = a.key_starts;
  return result;
}

bool has_sequences_to_pack(const Attention& a) {
  return a.query_starts.size(0) - 1 <= kMostBlocks;
}

bool has_chunks_to_pack(const Attention& a) {
  const auto T = a.query.size(-2);
  const auto S = a.key.size(-2);
  const auto B = a.query.size(0);
  if (!a.rule.chunk || T > S || B * S > kMostRows) {
    return false;
  }
  // For each sequence flash's backward pass has memory for so many rows.
  constexpr int64_t kFewRows = 128;
  const auto chunk = *a.rule.chunk;
  return B * (S / chunk + 2) <= kMostBlocks &&
      (chunk >= kFewRows || !is_recorded_in(a));
}

FusedAttention pack_chunks(
    const Attention& a,
    const Operands& x,
    const FusedCall& call) {
  const auto B = x.query.size(0);
  const auto T = x.query.size(2);
  const auto chunk = *a.rule.chunk;
  // The keys before the first query's chunk are left out.
  const auto first = x.key.size(2) - T;
  const auto skipped = first - first % chunk;
  const auto S = x.key.size(2) - skipped;
  const bool recorded = is_recorded_in(a);
  const auto keys = key_rows(
      x.key.narrow(2, skipped, S), x.value.narrow(2, skipped, S), !recorded);
  auto result = with_operands(call, x, query_rows(x.query), keys);
  Starts starts;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t begin = 0; begin < S; begin += std::min(chunk, S - begin)) {
      const auto query = std::max<int64_t>(0, begin - (first - skipped));
      starts.add(
          b * T + query, b * keys.distance + begin, std::min(chunk, S - begin));
    }
  }
  starts.end(B * T, (B - 1) * keys.distance + S);
  const auto device = x.query.device();
  PackedStarts packed{
      on_device(starts.queries, device),
      on_device(starts.keys, device),
      {},
      std::min(chunk, T),
      std::min(chunk, S)};
  if (!starts.have_no_gaps()) {
    packed.keys_used = on_device(starts.keys_used, device);
  }
  if (recorded) {
    result.query_starts = at::tensor(starts.queries, torch::kLong);
    result.key_starts = at::tensor(starts.keys, torch::kLong);
  }
  result.call.packed = packed;
  return result;
}

bool has_cache_to_pack(const Attention& a) {
  const bool aligned =
      a.ends_at_lengths || (!a.query_offsets.defined() && !a.rule.hides_keys());
  const auto rows = a.query.size(0) * a.key.size(-2);
  return a.key_lengths.defined() && aligned && !a.rule.chunk &&
      !is_recorded_in(a) && rows <= kMostRows;
}

FusedAttention pack_cache(
    const Attention& a,
    const Operands& x,
    const FusedCall& call) {
  const auto B = x.query.size(0);
  const auto T = x.query.size(2);
  const auto S = x.key.size(2);
  const auto keys = key_rows(x.key, x.value, /*may_have_gaps=*/true);
  auto result = with_operands(call, x, query_rows(x.query), keys);
  // Few operators: in a step of decoding each takes as long as its attention.
  const auto ints = torch::device(x.query.device()).dtype(torch::kInt);
  const auto sequences = at::arange(B + 1, ints);
  PackedStarts packed{
      T == 1 ? sequences : sequences * T,
      sequences * keys.distance,
      a.key_lengths.clamp(0, S).to(torch::kInt),
      T,
      S};
  if (a.query.size(-2) == 1 && call.rule.window) {
    // A single query's window is the last keys.
    const auto used = packed.keys_used.clamp_max(*call.rule.window);
    packed.keys.slice(0, 0, B).add_(packed.keys_used - used);
    packed.keys_used = used;
    result.call.rule.window = std::nullopt;
  }
  if (a.query.size(-2) == 1) {
    result.call.rule.causal = false;
  }
  result.call.packed = packed;
  return result;
}

} // namespace torch_attention::kernels
