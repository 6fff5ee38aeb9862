// The division of work in the backward pass, and the memory that a task needs.

#if defined(TORCH_ATTENTION_CPU_BACKWARD_MEMORY_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_BACKWARD_MEMORY_INL_H_
#undef TORCH_ATTENTION_CPU_BACKWARD_MEMORY_INL_H_
#else
#define TORCH_ATTENTION_CPU_BACKWARD_MEMORY_INL_H_
#endif

#include <cpu/added-inl.h>
#include <cpu/amx-inl.h>
#include <cpu/head.h>
#include <cpu/pairs-inl.h>
#include <cpu/products-inl.h>
#include <cpu/sequences.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// The division of work in `backward`. It depends on sizes only, not on
/// threads.
///
/// A task takes a range of keys of one key/value head through all queries that
/// see them, with five products for each tile. The gradients of key and value
/// need no other task, but the gradient of query does: where there are few
/// heads, each range of keys adds to a copy of it, and the copies are summed at
/// the end. (Separate passes for the gradients of query and of key and value
/// would need no copies, but seven products.)
struct BackwardPlan {
  /// The heads whose queries are rows of the same tiles, interleaved: 1, or all
  /// that read the same keys.
  int64_t shared_heads = 1;
  /// the keys of a task
  int64_t split_keys = 0;
  int64_t splits = 1;
  /// the keys whose gradients stay in the level 2 cache
  int64_t chunk_keys = 0;
};

template <typename X, typename T = Compute<X>>
BackwardPlan backward_plan(const AttentionArguments<X>& a) {
  constexpr int64_t kEnoughTasks = 64;
  constexpr int64_t kMaxSplits = 16; // bounds the memory
  constexpr int64_t kMinSplitKeys = 128;
  constexpr int64_t kChunkBytes = 512 * 1024;
  const auto ceil_div = [](int64_t n, int64_t d) { return (n + d - 1) / d; };
  const auto blocks_of = [&](int64_t keys) {
    return ceil_div(keys, kKeyBlock) * kKeyBlock;
  };
  BackwardPlan plan;
  // Dropout counts the queries of one head.
  if (a.dropout == 0 && !backward_goes_by_tiles(a)) {
    plan.shared_heads = a.num_heads / a.num_kv_heads;
  }
  const auto heads = num_sequences(a) * a.num_kv_heads;
  const auto splits = std::clamp<int64_t>(
      std::min(ceil_div(kEnoughTasks, heads), a.num_keys / kMinSplitKeys),
      1,
      kMaxSplits);
  plan.split_keys =
      std::max(kKeyBlock, blocks_of(ceil_div(a.num_keys, splits)));
  plan.splits = std::max<int64_t>(1, ceil_div(a.num_keys, plan.split_keys));
  const auto key_bytes =
      2 * (a.head_dim + a.value_dim) * static_cast<int64_t>(sizeof(T));
  plan.chunk_keys = std::min(
      plan.split_keys,
      std::max(kKeyBlock, kChunkBytes / key_bytes / kKeyBlock * kKeyBlock));
  return plan;
}

/// Returns how many rows of queries on the lanes a tile needs: numbers, or
/// their pairs in whole tiles.
inline int64_t lane_rows(int64_t size) {
  return std::max(
      round_up_to_lanes<float>(size), round_up_to<kTileDepth>(size) / 2);
}

/// The memory of a task. `width` is the queries of a tile, and `wide` all
/// queries that are computed at once: more than one tile only by AMX.
template <typename T>
struct BackwardMemory {
  // For a chunk of keys; D and E are padded to vectors.
  int64_t first_key = 0;
  bool finite_keys = true;
  T* key = nullptr; // (chunk, D)
  T* value = nullptr; // (chunk, E)
  T* grad_key = nullptr; // (chunk, D)
  T* grad_value = nullptr; // (chunk, E)
  // For a tile of queries
  T* query_lanes = nullptr; // (D, width), scaled; for each tile of `wide`
  T* grad_output_lanes = nullptr; // (E, width), times the scale of dropout
  T* query_rows = nullptr; // (width, D)
  T* grad_output_rows = nullptr; // (width, E)
  T* grad_query_lanes = nullptr; // (D, wide)
  T* grad_query_rows = nullptr; // (wide, D)
  T* maximum = nullptr; // (wide), of the scores
  T* inverse_sum = nullptr; // (wide), of the weights
  T* delta = nullptr; // (wide), sum of output * grad_output
  T* scale = nullptr; // (wide)
  // For both, and for AMX's larger blocks of keys
  T* scores = nullptr; // (kKeyBlock, width), then the weights
  T* grad_scores = nullptr; // (kKeyBlock, width)
  T* derivative = nullptr; // (kKeyBlock, width), of `transform_scores`
  AddedMemory<T> added;
  TileMap map; // of the chunk
  T* distances = nullptr; // (wide), of distances times gradients of scores
  // Used if bfloat16 is multiplied by pairs; the lanes above are then pairs of
  // D and E, not scaled.
  int64_t key_columns_row = 0; // D / 2, of whole tiles
  int64_t value_columns_row = 0; // E / 2, of whole tiles
  T* key_columns = nullptr; // (chunk, D / 2)
  T* value_columns = nullptr; // (chunk, E / 2)
  T* key_rows = nullptr; // (chunk / 2, D)
  T* query_row_pairs = nullptr; // (wide / 2, D)
  T* grad_output_row_pairs = nullptr; // (wide / 2, E)
  T* grad_score_pairs = nullptr; // (half a block of keys, width or wide)
  // Used if bfloat16 is multiplied by tiles.
  BFloat16* weight_rows = nullptr; // (kTileKeys, wide)
  BFloat16* grad_score_rows = nullptr; // (kTileKeys, wide)
  int64_t key_lanes_row =
      0; // longer than the chunk, lest rows collide in cache
  BFloat16* key_lanes = nullptr; // (D, chunk)
  // Used if a key is not finite: copies with 0 in its place.
  BFloat16* finite_keys_copy = nullptr; // (chunk, D)
  int64_t* unusual_keys = nullptr; // (chunk), counted from `first_key`
  int64_t num_unusual_keys = 0;

  BackwardMemory() = default;

  template <typename X>
  BackwardMemory(
      Parts& parts,
      const AttentionArguments<X>& a,
      const BackwardPlan& plan) {
    constexpr int64_t W = kMaxTileQueries<T>;
    const auto D = round_up_to_lanes<T>(a.head_dim);
    const auto E = round_up_to_lanes<T>(a.value_dim);
    const auto chunk = plan.chunk_keys;
    const bool by_tiles = multiplies_tiles<X>();
    const auto wide = by_tiles ? kWideQueries : W;
    const auto block = by_tiles ? kTileKeys : kKeyBlock;
    key = parts.take<T>(chunk * D);
    value = parts.take<T>(chunk * E);
    grad_key = parts.take<T>(chunk * D);
    grad_value = parts.take<T>(chunk * E);
    query_lanes = parts.take<T>((by_tiles ? lane_rows(D) : D) * wide);
    grad_output_lanes = parts.take<T>((by_tiles ? lane_rows(E) : E) * wide);
    query_rows = parts.take<T>(W * D);
    grad_output_rows = parts.take<T>(W * E);
    grad_query_lanes = parts.take<T>(D * wide);
    grad_query_rows = parts.take<T>(wide * D);
    maximum = parts.take<T>(wide);
    inverse_sum = parts.take<T>(wide);
    delta = parts.take<T>(wide);
    scale = parts.take<T>(wide);
    scores = parts.take<T>(block * W);
    grad_scores = parts.take<T>(block * W);
    if (!a.rule.is_linear()) {
      derivative = parts.take<T>(block * W);
    }
    if (has_bias_or_mask(a)) {
      added = AddedMemory<T>(parts, block, W);
      map = TileMap(parts, chunk);
    }
    if (a.alibi_slopes != nullptr) {
      distances = parts.take<T>(wide);
    }
    if (multiplies_pairs<X>()) {
      key_columns_row = round_up_to<kTileDepth>(a.head_dim) / 2;
      value_columns_row = round_up_to<kTileDepth>(a.value_dim) / 2;
      key_columns = parts.take<T>(chunk * key_columns_row);
      value_columns = parts.take<T>(chunk * value_columns_row);
      key_rows = parts.take<T>(chunk * D / 2);
      query_row_pairs = parts.take<T>(wide * D / 2);
      grad_output_row_pairs = parts.take<T>(wide * E / 2);
      grad_score_pairs = parts.take<T>(block * wide / 2);
    }
    if (by_tiles) {
      weight_rows = parts.take<BFloat16>(kTileKeys * wide);
      grad_score_rows = parts.take<BFloat16>(kTileKeys * wide);
      key_lanes_row = chunk + kTileDepth;
      key_lanes = parts.take<BFloat16>(key_lanes_row * D);
      finite_keys_copy = parts.take<BFloat16>(chunk * D);
      unusual_keys = parts.take<int64_t>(chunk);
    }
  }
};

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
