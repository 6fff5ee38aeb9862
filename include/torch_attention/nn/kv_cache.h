#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace torch_attention {

namespace detail {
class CacheAppend;
}

/// Options for `KVCache`.
///
/// Example:
/// ```
/// KVCache cache(
///     KVCacheOptions(/*batch_size=*/2, /*num_kv_heads=*/8, /*head_dim=*/64)
///         .max_length(4096)
///         .dtype(torch::kBFloat16));
/// ```
struct TORCH_ATTENTION_API KVCacheOptions {
  /// An empty cache of these sizes.
  KVCacheOptions(int64_t batch_size, int64_t num_kv_heads, int64_t head_dim);

  /// number of sequences.
  TORCH_ARG(int64_t, batch_size);

  /// number of key and value heads.
  TORCH_ARG(int64_t, num_kv_heads);

  /// size of each key.
  TORCH_ARG(int64_t, head_dim);

  /// size of each value. Default: head_dim
  TORCH_ARG(std::optional<int64_t>, value_dim) = std::nullopt;

  /// values are the first `value_dim` elements of each key and have no memory
  /// of their own, as in latent attention; `append` takes keys alone.
  /// Default: false
  TORCH_ARG(bool, values_in_keys) = false;

  /// the largest number of tokens of a sequence. Default: no limit
  TORCH_ARG(std::optional<int64_t>, max_length) = std::nullopt;

  /// keep at least the `window` last tokens of each sequence, and drop older
  /// ones, which sliding-window attention never reads again. Default: keep all
  TORCH_ARG(std::optional<int64_t>, window) = std::nullopt;

  /// keep the tokens of each sequence's last chunk of so many positions, from a
  /// multiple of `chunk` on, and drop those of older chunks, which chunked
  /// attention never reads again. Not beside `window`. Default: keep all
  TORCH_ARG(std::optional<int64_t>, chunk) = std::nullopt;

  /// number of processes that share the tokens of each sequence alternately
  /// (distributed/sequence_parallel.h): all give all tokens to `append`, and
  /// the one with the number `part` keeps those at the positions part, part +
  /// num_parts, and so on. Not beside `window` or `chunk`. Default: 1
  TORCH_ARG(int64_t, num_parts) = 1;

  /// Default: 0
  TORCH_ARG(int64_t, part) = 0;

  /// memory is allocated for multiples of so many tokens of each sequence. With
  /// `window` or `chunk`, `truncate` can take back as many from the longest
  /// that a sequence has been. Default: 256
  TORCH_ARG(int64_t, block) = 256;

  /// a floating-point dtype. Default: torch::kFloat
  TORCH_ARG(torch::Dtype, dtype) = torch::kFloat;

  /// Default: torch::kCPU
  TORCH_ARG(torch::Device, device) = torch::kCPU;
};

/// The keys and values of one attention layer, for decoding: each token's are
/// computed once and read by all later tokens (Shazeer 2019, "Fast Transformer
/// Decoding: One Write-Head is All You Need", section 2.4).
///
/// Sizes: `B` sequences, `G` key and value heads, `D` head_dim. Keys and values
/// are two tensors (B, G, capacity, D), so that the rows of a head follow each
/// other in memory. Each sequence has a length of its own; its rows are the
/// first `lengths() - starts()`, in the order of its tokens. Without `window`
/// and `chunk`, row `r` is token `r`, and memory grows by half, in whole
/// blocks, up to `max_length`. With `num_parts`, lengths and `max_length` are
/// those of all processes, and row `r` is token `part + r * num_parts`.
///
/// With `window`, memory stays bounded however long the sequences become: once
/// there is no row left for new tokens, each sequence's last `window - 1 +
/// block` rows are moved to the front and the ones before them dropped. Row `r`
/// is then token `starts() + r`. Rows are moved once for at least `block` new
/// tokens and stay in order and contiguous, as kernels want them. The capacity
/// is at most `window - 1 + 2 * block`, or `window - 1 + block + T` after an
/// `append` of `T > block` tokens, which need their whole windows at once; the
/// next smaller `append` gives that memory back. With `chunk` it is the same,
/// with `chunk` in the place of `window`, but what is moved begins at the chunk
/// of the token `block` before the next, so that `starts()` are multiples.
///
/// A call that throws leaves the cache as it was. Autograd records nothing. One
/// thread at a time may use a cache that changes. Caches are moved, not copied,
/// except by `clone`.
///
/// Example:
/// ```
/// auto cache = attention->make_cache(/*batch_size=*/1);
/// auto context = attention->decode(prompt, cache); // (1, T, d_out)
/// context = attention->decode(token, cache); // (1, 1, d_out)
/// ```
class TORCH_ATTENTION_API KVCache {
 public:
  /// Allocates nothing before the first `append` or `reserve`.
  /// Throws c10::Error for sizes that are not positive or fit into no memory,
  /// and for a dtype that is not floating-point.
  explicit KVCache(const KVCacheOptions& options);

  /// Leaves nothing to be used behind.
  KVCache(KVCache&&) noexcept = default;
  /// Leaves nothing to be used behind.
  KVCache& operator=(KVCache&&) noexcept = default;
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;
  ~KVCache() = default;

  /// A copy with memory of its own, as for two continuations of one text.
  KVCache clone() const;

  /// Adds T tokens to each sequence: keys and values (B, G, T, D) on the
  /// cache's device, converted to its dtype; undefined values with
  /// `values_in_keys`. With `new_lengths`, an integer
  /// tensor (B), sequence b takes only the first `new_lengths[b]` of the T,
  /// which leaves out the padding of right-padded prompts.
  ///
  /// Throws c10::Error if shapes or devices do not fit, or a sequence would
  /// become longer than `max_length`.
  void append(
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& new_lengths = {});

  /// View (B, G, S, D) of the keys; S is the largest number of rows that a
  /// sequence has. The rows after a sequence's own hold anything. The next
  /// change of the cache may write or abandon this memory.
  torch::Tensor keys() const;

  /// A view of the values, as `keys` is of the keys.
  torch::Tensor values() const;

  /// Number of tokens so far, which is the position of the next token: int64
  /// (B) on the CPU, not to be written to. A later change of the cache gives a
  /// new tensor, and leaves this one as it is.
  torch::Tensor lengths() const {
    return state_.lengths;
  }

  /// The position of each sequence's first row: int64 (B) on the CPU, not to be
  /// written to. 0 without `window` and `chunk`.
  torch::Tensor starts() const {
    return state_.rows.starts;
  }

  /// Cuts sequences that are longer than `length` tokens to it.
  ///
  /// Throws c10::Error if `length` is negative or, with `window` or `chunk`, if
  /// tokens that the next one attends to have been dropped.
  void truncate(int64_t length);

  /// Cuts each sequence to its own of the integer tensor `lengths` (B).
  void truncate(const torch::Tensor& lengths);

  /// Forgets all tokens and keeps the memory.
  void reset();

  /// Sequence b continues what sequence `sources[b]` was, as beam search wants
  /// after each step: `sources` is an integer tensor (B), in which a sequence
  /// may come several times or not at all. On the CPU sequences that keep their
  /// place are not touched; elsewhere all are copied.
  ///
  /// Throws c10::Error if `sources` are not B numbers of 0 to B - 1.
  ///
  /// Example, where all sequences are beams of one text:
  /// ```
  /// auto [scores, beams] = candidates.topk(cache.options().batch_size());
  /// cache.reorder(beams.floor_divide(vocabulary_size));
  /// ```
  void reorder(const torch::Tensor& sources);

  /// Allocates at once what sequences of `length` tokens need.
  /// Throws c10::Error if `length` is negative or larger than `max_length`.
  void reserve(int64_t length);

  /// Moves the keys and values to another device; lengths are unchanged.
  void to(torch::Device device);
  /// Casts the keys and values to another dtype.
  void to(torch::Dtype dtype);
  /// Moves and casts the keys and values.
  void to(torch::Device device, torch::Dtype dtype);

  /// The most tokens that a sequence has had since all were empty. LongRoPE
  /// rotates the keys of longer texts in another way.
  int64_t peak_length() const {
    return state_.peak_length;
  }

  /// Number of rows for which there is memory, of each sequence and head.
  int64_t capacity() const {
    return state_.rows.keys.size(2);
  }

  /// Bytes of all keys and values for which there is memory.
  size_t nbytes() const {
    return state_.rows.keys.nbytes() +
        (options_.values_in_keys() ? 0 : state_.rows.values.nbytes());
  }

  /// The options with which the cache was constructed; dtype and device are the
  /// current ones.
  const KVCacheOptions& options() const {
    return options_;
  }

 private:
  friend class detail::CacheAppend;

  /// (B, G, capacity, D) each, and for each sequence the position of row 0.
  struct Rows {
    torch::Tensor keys;
    torch::Tensor values;
    torch::Tensor starts;
  };

  /// All that an `append` changes.
  struct State {
    Rows rows;
    torch::Tensor lengths;
    int64_t peak_length = 0;
  };

  Rows allocate(int64_t capacity) const;
  Rows with_room_for(torch::IntArrayRef new_rows) const;
  Rows moved(int64_t new_capacity, bool drops) const;
  torch::Tensor own_tokens(const torch::Tensor& x) const;
  void write(
      const Rows& rows,
      const torch::Tensor& keys,
      const torch::Tensor& values,
      torch::IntArrayRef new_rows) const;
  void truncate_to(torch::IntArrayRef wanted);
  int64_t num_rows(int64_t b) const;
  int64_t num_rows() const;

  KVCacheOptions options_;
  State state_;
};

} // namespace torch_attention
