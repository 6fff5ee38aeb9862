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
class CacheState;
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
  KVCacheOptions(int64_t batch_size, int64_t num_kv_heads, int64_t head_dim);

  /// number of sequences.
  TORCH_ARG(int64_t, batch_size);

  /// number of key and value heads.
  TORCH_ARG(int64_t, num_kv_heads);

  /// size of each key.
  TORCH_ARG(int64_t, head_dim);

  /// size of each value. Default: head_dim
  TORCH_ARG(std::optional<int64_t>, value_dim) = std::nullopt;

  /// store no values, because they are the first `value_dim` elements of each
  /// key, as in latent attention; `append` then takes only keys. Default: false
  TORCH_ARG(bool, values_in_keys) = false;

  /// the largest number of tokens of a sequence. Default: no limit
  TORCH_ARG(std::optional<int64_t>, max_length) = std::nullopt;

  /// keep at least the last `window` tokens of each sequence and drop older
  /// ones, which sliding-window attention never reads again. Default: keep all
  TORCH_ARG(std::optional<int64_t>, window) = std::nullopt;

  /// keep the tokens of each sequence's last chunk, which starts at a multiple
  /// of `chunk`, and drop older chunks, which chunked attention never reads
  /// again. Not with `window`. Default: keep all
  TORCH_ARG(std::optional<int64_t>, chunk) = std::nullopt;

  /// number of processes over which the tokens of each sequence are distributed
  /// (distributed/sequence_parallel.h): each process passes all tokens to
  /// `append`, and its cache stores the positions part, part + num_parts, and
  /// so on. Not with `window` or `chunk`. Default: 1
  TORCH_ARG(int64_t, num_parts) = 1;

  /// number of this process, from 0 to num_parts - 1. Default: 0
  TORCH_ARG(int64_t, part) = 0;

  /// number of tokens by whose multiples memory is allocated. With `window` or
  /// `chunk`, `truncate` can remove as many tokens from the greatest length
  /// that a sequence had. Default: 256
  TORCH_ARG(int64_t, block) = 256;

  /// floating-point dtype of keys and values, or torch::kInt8, which takes
  /// head_dim + 4 bytes for each key and head. Default: torch::kFloat
  TORCH_ARG(torch::Dtype, dtype) = torch::kFloat;

  /// device of keys and values. Default: torch::kCPU
  TORCH_ARG(torch::Device, device) = torch::kCPU;
};

/// The keys and values of one attention layer, for decoding: they are computed
/// once per token and read by all later tokens (Shazeer 2019, "Fast Transformer
/// Decoding: One Write-Head is All You Need", section 2.4).
///
/// Sizes: `B` sequences, `G` key and value heads, `D` head_dim. Keys and values
/// are two tensors (B, G, capacity, D), so that the rows of a head are
/// contiguous. Sequences may differ in length; the first `lengths() - starts()`
/// rows of each are in use, in the order of its tokens. Without `window` and
/// `chunk`, row `r` is token `r`, and memory grows by half, in multiples of
/// `block`, up to `max_length`. With `num_parts`, lengths and `max_length`
/// count the tokens of all processes, and row `r` is token
/// `part + r * num_parts`.
///
/// With `window`, memory is bounded for sequences of any length: when no row is
/// left for new tokens, the last `window - 1 + block` rows of each sequence are
/// moved to the front and older ones dropped. Row `r` is then token
/// `starts() + r`. Rows are moved once per at least `block` new tokens and stay
/// in order and contiguous, as the kernels require. The capacity is at most
/// `window - 1 + 2 * block`, or `window - 1 + block + T` after an `append` of
/// `T > block` tokens, which need their complete windows at once; the next
/// smaller `append` frees that memory. `chunk` works like `window`, but the
/// moved rows start with the chunk of the token `block` before the next one, so
/// that `starts()` are multiples of `chunk`.
///
/// With torch::kInt8, each key and value is stored as integers from -127 to 127
/// and their scale, a float: its largest absolute number / 127. A number is off
/// by at most half of the scale, so that keys with a few numbers far larger
/// than the others lose more. On the CPU attention of few queries multiplies
/// the integers; other calls convert the rows of the cache. A key or value with
/// NaN or infinity becomes NaN in all of its numbers.
///
/// A call that throws leaves the cache as it was. Autograd records nothing. Not
/// thread-safe while it changes. Caches can be moved, and copied only by
/// `clone`.
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
  /// and for a dtype that is neither floating-point nor torch::kInt8.
  explicit KVCache(const KVCacheOptions& options);

  /// The moved-from cache must not be used.
  KVCache(KVCache&&) noexcept = default;
  KVCache& operator=(KVCache&&) noexcept = default;
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;
  ~KVCache() = default;

  /// Returns a deep copy, for example for two continuations of one prompt.
  KVCache clone() const;

  /// Adds T tokens to each sequence: keys and values (B, G, T, D) on the
  /// cache's device, converted to its dtype; undefined values with
  /// `values_in_keys`. With `new_lengths`, an integer tensor (B), adds only the
  /// first `new_lengths[b]` tokens to sequence b, without the padding of
  /// right-padded prompts.
  ///
  /// Throws c10::Error if shapes or devices do not fit, or a sequence would
  /// become longer than `max_length`.
  void append(
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& new_lengths = {});

  /// Returns a view (B, G, S, D) of the keys, where S is the largest number of
  /// rows of a sequence. Rows beyond those of a shorter sequence are
  /// unspecified. The next change of the cache may write to this memory or
  /// replace it. A cache of torch::kInt8 returns a copy in float32.
  torch::Tensor keys() const;

  /// Returns a view (B, G, S, value_dim) of the values, like `keys`.
  torch::Tensor values() const;

  /// Returns the number of tokens of each sequence, which is the position of
  /// its next token: int64 (B) on the CPU, read-only. Later changes of the
  /// cache do not change the returned tensor.
  torch::Tensor lengths() const {
    return state_.lengths;
  }

  /// Returns the position of each sequence's first row: int64 (B) on the CPU,
  /// read-only. 0 without `window` and `chunk`.
  torch::Tensor starts() const {
    return state_.rows.starts;
  }

  /// Truncates sequences that are longer than `length` tokens.
  ///
  /// Throws c10::Error if `length` is negative or, with `window` or `chunk`, if
  /// tokens that the next one attends to have been dropped.
  void truncate(int64_t length);

  /// Truncates sequence b to at most `lengths[b]` tokens; `lengths` is an
  /// integer tensor (B).
  void truncate(const torch::Tensor& lengths);

  /// Removes all tokens and keeps the memory.
  void reset();

  /// Replaces each sequence b by sequence `sources[b]`, for beam search:
  /// `sources` is an integer tensor (B), in which a sequence may occur several
  /// times or not at all. On the CPU sequences with `sources[b] == b` are not
  /// copied; on other devices all are.
  ///
  /// Throws c10::Error if `sources` are not B numbers of 0 to B - 1.
  ///
  /// Example, where all sequences are beams of one text:
  /// ```
  /// auto [scores, beams] = candidates.topk(cache.options().batch_size());
  /// cache.reorder(beams.floor_divide(vocabulary_size));
  /// ```
  void reorder(const torch::Tensor& sources);

  /// Allocates memory for sequences of `length` tokens.
  /// Throws c10::Error if `length` is negative or larger than `max_length`.
  void reserve(int64_t length);

  /// Moves the keys and values to another device; lengths are unchanged.
  void to(torch::Device device);
  /// Casts the keys and values to another dtype; rounds them to torch::kInt8.
  void to(torch::Dtype dtype);
  /// Moves and casts the keys and values.
  void to(torch::Device device, torch::Dtype dtype);

  /// Returns the largest length that a sequence has had since all were empty.
  /// LongRoPE rotates the keys of long sequences differently.
  int64_t peak_length() const {
    return state_.peak_length;
  }

  /// Returns the number of allocated rows per sequence and head.
  int64_t capacity() const {
    return state_.rows.keys.size(2);
  }

  /// Returns the number of bytes allocated for keys and values, with their
  /// scales.
  size_t nbytes() const {
    return state_.rows.keys.nbytes() +
        (options_.values_in_keys() ? 0 : state_.rows.values.nbytes());
  }

  /// Returns the options with which the cache was constructed, with its current
  /// dtype and device.
  const KVCacheOptions& options() const {
    return options_;
  }

 private:
  friend class detail::CacheState;

  /// Keys and values (B, G, capacity, D), of int8 as in kernels/int8_rows.h;
  /// `starts` is the position of row 0 of
  /// each sequence, int64 (B).
  struct Rows {
    torch::Tensor keys;
    torch::Tensor values;
    torch::Tensor starts;
  };

  /// Everything that `append` changes.
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
  torch::Tensor in_use(const torch::Tensor& rows) const;
  int64_t num_rows(int64_t b) const;
  int64_t num_rows() const;

  KVCacheOptions options_;
  State state_;
};

} // namespace torch_attention
