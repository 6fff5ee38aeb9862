#pragma once

#include <cpu/mask_tiles.h>
#include <torch_attention/nn/options/score_rule.h>

#include <cstdint>
#include <functional>

/// Attention on the CPU without a (T, S) tensor: tiles of scores, online
/// softmax. Pointers, sizes and strides only; no LibTorch.
///
/// Sizes: B batch, H query heads, G key/value heads (H is a multiple of G),
/// T queries, S keys, D head_dim of query and key, E head_dim of value.
namespace torch_attention::cpu {

/// Storage formats with the layout of c10's types; computed in float.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <typename X>
struct ComputeOf {
  using type = X;
};
template <>
struct ComputeOf<BFloat16> {
  using type = float;
};
template <>
struct ComputeOf<Float16> {
  using type = float;
};
/// The type that elements stored as X are computed in.
template <typename X>
using Compute = typename ComputeOf<X>::type;

/// Distances in elements. The last dimension, head_dim, is contiguous.
struct Strides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t token = 0;
};

/// (B, heads, tokens, head_dim) in any order in memory.
template <typename T>
struct Heads {
  T* data = nullptr;
  Strides strides;
};

/// A block holds a multiple of so many tokens, so that kernels find all keys of
/// a step in one block.
constexpr int64_t kBlockTokens = 64;

/// Keys and values in blocks of tokens that lie anywhere (Kwon et al. 2023,
/// "Efficient Memory Management for Large Language Model Serving with
/// PagedAttention").
struct BlockTable {
  /// (B, row), where each block (G, size, D) of a sequence's keys begins, in
  /// the order of its tokens. Blocks beyond its last key may be anything. Null:
  /// keys and values are not in blocks.
  const void* const* keys = nullptr;
  /// (B, row), for the values
  const void* const* values = nullptr;
  int64_t row = 0;
  /// tokens of a block, a multiple of kBlockTokens
  int64_t size = 0;
};

/// Keys or values as int8: each row holds its numbers divided by its scale, a
/// float of the row itself. The scale of a row that was not finite is NaN.
struct Int8Rows {
  /// Strides are bytes.
  Heads<const int8_t> rows;
  /// How many bytes after the beginning of a row its scale is; 0: no such rows.
  int64_t scale = 0;
};

/// (B, H, T, S), broadcast along a dimension whose stride is 0; or absent.
template <typename T>
struct Scores {
  T* data = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t query = 0;
  int64_t key = 0;
};

/// The threads to compute with. Results do not depend on how many there are.
struct Threads {
  int64_t count = 1;
  /// Calls `fn(0)` to `fn(n - 1)`, on any threads, and waits for all.
  /// `at::parallel_for(0, n, 1, …)` does. Not called when `count` is 1.
  std::function<void(int64_t n, const std::function<void(int64_t index)>& fn)>
      parallel_for;
};

/// X is float, double, BFloat16 or Float16.
///
/// The result is softmax(scores + bias, hidden keys excluded) v, where `rule`
/// makes the scores of q k^T, and a sink takes its share of the weights. A
/// query that sees no key has an output of zeros.
template <typename X>
struct AttentionArguments {
  int64_t batch_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t num_queries = 0;
  int64_t num_keys = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;

  /// (B, H, T, D)
  Heads<const X> query;
  /// (B, G, S, D); query head h reads head h / (H / G)
  Heads<const X> key;
  /// (B, G, S, E)
  Heads<const X> value;
  /// If set, `key` and `value` have only the strides of heads and tokens in a
  /// block. Only `forward` reads blocks, and not those of packed sequences.
  BlockTable blocks;
  /// If set, keys and values are read here, and `key` and `value` are empty; in
  /// `blocks` as well. Only `forward` of float reads them, without packed
  /// sequences and dropout.
  Int8Rows int8_key;
  Int8Rows int8_value;

  ScoreRule rule;
  /// (H); scores of head h lose slope times the distance between the positions
  /// of query and key.
  const Compute<X>* alibi_slopes = nullptr;
  /// (H); exp(sink) of head h is one more summand of the sum that weights are
  /// divided by. Null: none.
  const Compute<X>* sinks = nullptr;
  /// (B), the position of the first query among the keys. Default: S - T.
  const int64_t* query_offsets = nullptr;
  /// (B), hides the keys from here on, which are not read. Default: S.
  const int64_t* key_lengths = nullptr;
  /// Added to the scores that `rule` makes.
  Scores<const X> bias;
  /// `bias` in the compute type, where X has too few bits.
  Scores<const Compute<X>> wide_bias;
  /// True hides; what is hidden may be NaN.
  Scores<const bool> mask;
  /// Hides all keys that it does not have.
  MaskTiles mask_tiles;
  /// Whether each query's sums have one order, however many queries there are
  /// and at whichever it begins; costs time where there are few.
  bool same_bits = false;
  /// Whether `backward` will compute the scores again, whose order of sums
  /// `forward` then takes: large scores differ by more than 1 in another.
  bool has_backward = false;

  /// Returns whether rows sum their scores in the order of tiles.
  bool sums_in_order() const {
    return same_bits || has_backward;
  }

  /// For tests: false reads mask and bias only tile by tile, without a map.
  bool maps_mask = true;
  /// The probability, in [0, 1] and in steps of 2^-16, that a weight is
  /// dropped.
  double dropout = 0.0;
  /// Chooses the weights that are dropped: the same for any number of threads
  /// and any instruction set.
  uint64_t dropout_seed = 0;
  /// Dropout is keyed by a head's index among all heads of a sequence: the
  /// number of heads before these, and of all heads. 0: these are all.
  int64_t dropout_first_head = 0;
  int64_t dropout_num_heads = 0;
  /// The positions of the first query (even) and key (a multiple of 4) in the
  /// whole sequence, by which dropout is keyed as well.
  int64_t dropout_first_query = 0;
  int64_t dropout_first_key = 0;

  /// Packed sequences of different lengths: B is 1, and T and S count the
  /// tokens of all, one sequence after the other. The B of offsets, lengths,
  /// bias and mask is then the number of sequences, whose bias and mask begin
  /// at (0, 0).
  int64_t num_sequences = 0;
  /// (num_sequences + 1), from 0 to T: sequence i has the queries
  /// [query_starts[i], query_starts[i + 1]). Null: not packed.
  const int64_t* query_starts = nullptr;
  /// (num_sequences + 1), where the keys of each sequence begin, from 0 to S.
  const int64_t* key_starts = nullptr;

  bool reads_int8() const {
    return int8_key.scale > 0;
  }
};

/// Softmax statistics of each row, for `backward`: (B, H, T), contiguous; for
/// packed sequences (H, T) of each in turn. A logsumexp would not do: with a
/// bias of the lowest number on all keys it loses the number of keys.
template <typename T>
struct RowStatistics {
  /// of the scores that the query sees, and its sink; 0 if it sees none
  T* maximum = nullptr;
  /// of exp(score - maximum), the sink's too; 0 if it sees none
  T* sum = nullptr;
};

/// Computes the output (B, H, T, E) and, unless its pointers are null,
/// `statistics`. Few queries are split over their keys, so this serves the
/// decode step as well.
template <typename X>
void forward(
    const AttentionArguments<X>& arguments,
    const Heads<X>& output,
    const RowStatistics<Compute<X>>& statistics,
    const Threads& threads);

/// The results of `forward`, the gradient of the output, and the memory for the
/// gradients of the inputs, which is overwritten.
template <typename X>
struct BackwardArguments {
  /// (B, H, T, E)
  Heads<const X> output;
  RowStatistics<const Compute<X>> statistics;
  /// (B, H, T, E)
  Heads<const X> grad_output;
  /// (B, H, T, D)
  Heads<X> grad_query;
  /// (B, G, S, D)
  Heads<X> grad_key;
  /// (B, G, S, E)
  Heads<X> grad_value;
  /// (H); null: not requested
  Compute<X>* grad_alibi_slopes = nullptr;
  /// (H); null: not requested
  Compute<X>* grad_sinks = nullptr;
  /// (B, H, T, S), of zeros, which stay where a key is hidden; absent: not
  /// requested. Not broadcast, even where the bias itself is, and with
  /// contiguous rows.
  Scores<Compute<X>> grad_bias;
};

/// Computes the gradients of query, key, value, slopes, sinks and bias;
/// `arguments` as given to `forward`.
template <typename X>
void backward(
    const AttentionArguments<X>& arguments,
    const BackwardArguments<X>& gradients,
    const Threads& threads);

/// Instruction sets that the kernels are compiled for: those of ARM64 after all
/// others, and in each family the slowest first. kAvx512Bf16 and kNeonBf16 add
/// products of bfloat16 by pairs, kAmxBf16 also products by tiles; both sets of
/// x86 add products of 16-bit integers by pairs.
enum class InstructionSet {
  kPortable,
  kAvx2,
  kAvx512,
  kAvx512Bf16,
  kAmxBf16,
  kNeon,
  kNeonBf16
};

/// Returns true if the set has products of bfloat16 by pairs.
constexpr bool has_pairs(InstructionSet set) {
  return set == InstructionSet::kAvx512Bf16 ||
      set == InstructionSet::kAmxBf16 || set == InstructionSet::kNeonBf16;
}

/// Returns true if this machine has the set, and this build a kernel for it.
bool is_supported(InstructionSet instruction_set);

/// Returns the set in use. Default: the fastest supported, which LibTorch's
/// variables limit: ATEN_CPU_CAPABILITY=avx512 (without pairs of bfloat16),
/// =avx2 or =default (on ARM64 kNeon); and ONEDNN_MAX_CPU_ISA of a set without
/// AMX (avx512_core_bf16), which LibTorch's products by tiles obey.
InstructionSet instruction_set();

/// Overrides the set, for tests and benchmarks; it must be supported.
void set_instruction_set(InstructionSet instruction_set);

} // namespace torch_attention::cpu
