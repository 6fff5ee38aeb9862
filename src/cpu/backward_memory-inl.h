// The division of work in the backward pass, and the memory that a task needs.

#if defined(TORCH_ATTENTION_CPU_BACKWARD_MEMORY_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_BACKWARD_MEMORY_INL_H_
#undef TORCH_ATTENTION_CPU_BACKWARD_MEMORY_INL_H_
#else
#define TORCH_ATTENTION_CPU_BACKWARD_MEMORY_INL_H_
#endif

#include <cpu/added-inl.h>
#include <cpu/head.h>
#include <cpu/products-inl.h>
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
/// need no other task, but that of query does: where there are few heads, each
/// range of keys adds to a copy of the query's gradient, and the copies are
/// summed at the end. (Separate passes for the gradients of query and of key
/// and value would need no copies, but seven products.)
struct BackwardPlan {
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
  const auto heads = a.batch_size * a.num_kv_heads;
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
  T* query_lanes = nullptr; // (D, width), scaled
  T* grad_output_lanes = nullptr; // (E, width), scaled by what dropout keeps
  T* query_rows = nullptr; // (width, D)
  T* grad_output_rows = nullptr; // (width, E)
  T* grad_query_lanes = nullptr; // (D, width)
  T* grad_query_rows = nullptr; // (width, D)
  T* maximum = nullptr; // (width), of the scores
  T* inverse_sum = nullptr; // (width), of the weights
  T* delta = nullptr; // (width), sum of output * grad_output
  T* scale = nullptr; // (width)
  // For both
  T* scores = nullptr; // (kKeyBlock, width), then the weights
  T* grad_scores = nullptr; // (kKeyBlock, width)
  T* derivative = nullptr; // (kKeyBlock, width), of `bend_scores`
  AddedMemory<T> added;
  T* distances = nullptr; // (width), of keys times gradients of their scores
  // Where bfloat16 is multiplied by pairs; the lanes above are then pairs of D
  // and E, not scaled.
  T* key_columns = nullptr; // (chunk, D / 2)
  T* value_columns = nullptr; // (chunk, E / 2)
  T* key_rows = nullptr; // (chunk / 2, D)
  T* query_row_pairs = nullptr; // (width / 2, D)
  T* grad_output_row_pairs = nullptr; // (width / 2, E)
  T* grad_score_pairs = nullptr; // (kKeyBlock / 2, width)

  template <typename X>
  BackwardMemory(
      Parts& parts,
      const AttentionArguments<X>& a,
      const BackwardPlan& plan) {
    constexpr int64_t W = kMaxTileQueries<T>;
    const auto D = round_up_to_lanes<T>(a.head_dim);
    const auto E = round_up_to_lanes<T>(a.value_dim);
    key = parts.take<T>(plan.chunk_keys * D);
    value = parts.take<T>(plan.chunk_keys * E);
    grad_key = parts.take<T>(plan.chunk_keys * D);
    grad_value = parts.take<T>(plan.chunk_keys * E);
    query_lanes = parts.take<T>(D * W);
    grad_output_lanes = parts.take<T>(E * W);
    query_rows = parts.take<T>(W * D);
    grad_output_rows = parts.take<T>(W * E);
    grad_query_lanes = parts.take<T>(D * W);
    grad_query_rows = parts.take<T>(W * D);
    maximum = parts.take<T>(W);
    inverse_sum = parts.take<T>(W);
    delta = parts.take<T>(W);
    scale = parts.take<T>(W);
    scores = parts.take<T>(kKeyBlock * W);
    grad_scores = parts.take<T>(kKeyBlock * W);
    if (a.rule.bends()) {
      derivative = parts.take<T>(kKeyBlock * W);
    }
    if (has_bias_or_mask(a)) {
      added.rows = parts.take<T>(W * kKeyBlock);
      added.tile = parts.take<T>(kKeyBlock * W);
    }
    if (a.alibi_slopes != nullptr) {
      distances = parts.take<T>(W);
    }
    if (multiplies_pairs<X>()) {
      key_columns = parts.take<T>(plan.chunk_keys * D / 2);
      value_columns = parts.take<T>(plan.chunk_keys * E / 2);
      key_rows = parts.take<T>(plan.chunk_keys * D / 2);
      query_row_pairs = parts.take<T>(W * D / 2);
      grad_output_row_pairs = parts.take<T>(W * E / 2);
      grad_score_pairs = parts.take<T>(kKeyBlock * W / 2);
    }
  }
};

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
