// Memory of the forward pass: tiles of queries, blocks of keys.

#if defined(TORCH_ATTENTION_CPU_FORWARD_MEMORY_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_MEMORY_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_MEMORY_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_MEMORY_INL_H_
#endif

#include <cpu/amx-inl.h>
#include <cpu/forward_plan-inl.h>
#include <cpu/head.h>
#include <cpu/packing-inl.h>
#include <cpu/pairs-inl.h>
#include <cpu/products-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <type_traits>
#include <utility>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Up to kMaxTileQueries rows of a head, or of several interleaved heads, on
/// the lanes.
template <typename T>
struct QueryTile {
  int64_t first = 0;
  int64_t rows = 0;
  int vectors = 0;
  /// whether `output` and `sum` hold something yet
  bool started = false;
  /// distance between the rows of `query` and `output`
  int64_t row = 0;
  T* query = nullptr; // (D, width), scaled; or unscaled pairs
  T* output = nullptr; // (E, width), not divided by the sum
  T* maximum = nullptr; // (width), of the scores
  T* sum = nullptr; // (width), of the weights
  T* scores = nullptr; // (keys of a block, width), then the weights
  /// of the parts before, if there were some
  RowSums<T> before;
  bool has_before = false;
  TileMap map;

  int64_t width() const {
    return vectors * kLanes<T>;
  }

  void swap_with_before() {
    std::swap(maximum, before.maximum);
    std::swap(sum, before.sum);
    std::swap(output, before.output);
  }
};

/// Keys [begin, end) and where they are.
template <typename T>
struct KeyBlock {
  int64_t begin = 0;
  int64_t end = 0;
  const T* key = nullptr;
  const T* value = nullptr;
  int64_t key_row = 0;
  int64_t value_row = 0;
  /// prefetch distances in elements; 0: none
  int64_t key_ahead = 0;
  int64_t value_ahead = 0;
  /// true if rows of `key` are pairs of columns, and rows of `value` pairs of
  /// keys
  bool pairs = false;

  const T* key_at(int64_t s) const {
    return key + (s - begin) * key_row;
  }
  /// With pairs, `s` is an even number of keys after `begin`.
  const T* value_at(int64_t s) const {
    return value + (pairs ? (s - begin) / 2 : s - begin) * value_row;
  }
  /// Returns the block without the keys before `s`.
  KeyBlock from(int64_t s) const {
    auto rest = *this;
    rest.begin = s;
    rest.key = key_at(s);
    rest.value = value_at(s);
    return rest;
  }
};

/// The memory of a task.
template <typename T>
struct ForwardMemory {
  QueryTile<T> tiles[kMaxTiles];
  T* scores = nullptr; // of each tile in turn
  T* highest = nullptr; // (width), largest score of a block, with AMX
  T* previous = nullptr; // (width), maximum before a block of keys
  T* scale = nullptr; // (width)
  AddedMemory<T> added;
  T* key = nullptr; // (kKeyBlock, D padded), or a `TileBlock`'s
  T* value = nullptr; // (kKeyBlock, E padded), or a `TileBlock`'s

  // Used only by AMX tiles, when values may be NaN or infinite
  BFloat16* finite_values = nullptr; // (kTileKeys, E)
  int64_t* unusual = nullptr; // (kTileKeys)
  bool* seen = nullptr; // (kTileKeys, width)

  template <typename X>
  ForwardMemory(
      Parts& parts,
      const AttentionArguments<X>& a,
      const ForwardPlan& plan) {
    constexpr int64_t W = kMaxTileQueries<T>;
    const bool by_tiles = multiplies_tiles<X>();
    const auto D = a.head_dim;
    const auto E = a.value_dim;
    // bfloat16 in whole tiles, of which two take the memory of a float.
    const auto tile_D = by_tiles ? round_up_to<kTileDepth>(D) : 0;
    const auto tile_E = by_tiles ? round_up_to<kTileRows>(E) : 0;
    const auto tile_keys = by_tiles ? kTileKeys : 0;
    const auto block = std::max(kKeyBlock, tile_keys);
    scores = parts.take<T>(block * W);
    for (int i = 0; i < plan.tiles_per_task; ++i) {
      tiles[i].scores = scores;
      tiles[i].query = parts.take<T>(W * std::max(D, tile_D / 2));
      tiles[i].output = parts.take<T>(W * std::max(E, tile_E));
      tiles[i].maximum = parts.take<T>(W);
      tiles[i].sum = parts.take<T>(W);
      if (plan.key_splits == 1 && a.num_keys > kPartKeys) {
        tiles[i].before.output = parts.take<T>(W * std::max(E, tile_E));
        tiles[i].before.maximum = parts.take<T>(W);
        tiles[i].before.sum = parts.take<T>(W);
      }
      if (has_bias_or_mask(a)) {
        tiles[i].map = TileMap(parts, a.num_keys);
      }
    }
    highest = parts.take<T>(W);
    previous = parts.take<T>(W);
    scale = parts.take<T>(W);
    if (has_bias_or_mask(a)) {
      added = AddedMemory<T>(parts, block, W);
    }
    if (plan.packs_keys) {
      key = parts.take<T>(std::max(
          kKeyBlock * round_up_to_lanes<T>(D), tile_keys * tile_D / 2));
      value = parts.take<T>(std::max(
          kKeyBlock * round_up_to_lanes<T>(E), tile_keys * tile_E / 2));
    }
    if (by_tiles) {
      finite_values = parts.take<BFloat16>(kTileKeys * E);
      unusual = parts.take<int64_t>(kTileKeys);
      seen = parts.take<bool>(kTileKeys * W);
    }
  }
};

/// Returns whether some row of the first `tiles` tiles may see one of the keys
/// [s, s_end), by mask and bias.
template <typename T>
bool any_tile_sees(
    const ForwardMemory<T>& memory,
    int tiles,
    int64_t s,
    int64_t s_end) {
  return std::any_of(memory.tiles, memory.tiles + tiles, [&](const auto& tile) {
    return tile.map.sees(s, s_end);
  });
}

/// Returns keys [s, s_end) as they are in memory, or packed.
template <typename X, typename T>
KeyBlock<T> block_of(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const ForwardPlan& plan,
    bool pairs,
    int64_t s,
    int64_t s_end,
    const ForwardMemory<T>& memory) {
  KeyBlock<T> block;
  block.begin = s;
  block.end = s_end;
  block.key_row = a.key.strides.token;
  block.value_row = a.value.strides.token;
  const auto* key = head.key.at(s);
  const auto* value = head.value.at(s);
  if constexpr (std::is_same_v<X, T>) {
    block.key = key;
    block.value = value;
    // In one piece, the keys of the next head follow the last one.
    const bool follows =
        head.key.blocks == nullptr || s + kKeyBlock < head.visibility.num_keys;
    if (plan.prefetches && follows) {
      block.key_ahead = head.key.distance(s, s + kKeyBlock);
      block.value_ahead = head.value.distance(s, s + kKeyBlock);
    }
  }
  if (!plan.packs_keys) {
    return block;
  }
  block.key = memory.key;
  block.value = memory.value;
  block.key_row = round_up_to_lanes<T>(a.head_dim);
  block.value_row = round_up_to_lanes<T>(a.value_dim);
  block.key_ahead = 0;
  block.value_ahead = 0;
  const auto n = s_end - s;
  if constexpr (kHasPairs<X>) {
    if (pairs) {
      block.pairs = true;
      pack_pairs_of_columns(
          key, a.key.strides.token, n, a.head_dim, memory.key, block.key_row);
      pack_pairs_of_rows(
          value,
          a.value.strides.token,
          n,
          a.value_dim,
          memory.value,
          block.value_row);
      return block;
    }
  }
  pack_rows(
      key,
      a.key.strides.token,
      n,
      a.head_dim,
      Unscaled(),
      memory.key,
      block.key_row);
  pack_rows(
      value,
      a.value.strides.token,
      n,
      a.value_dim,
      Unscaled(),
      memory.value,
      block.value_row);
  return block;
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
