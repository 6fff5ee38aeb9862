#include <torch_attention/nn/kv_cache.h>

#include <check.h>
#include <kernels/cache_rows.h>
#include <kernels/int8_rows.h>
#include <large_pages.h>
#include <nn/cache_checks.h>
#include <nn/checks.h>
#include <physical_memory.h>

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention {

namespace {

constexpr const char* kCache = "KVCache";
constexpr int64_t kMaxSize = std::numeric_limits<int64_t>::max();

int64_t add(int64_t a, int64_t b) {
  return a > kMaxSize - b ? kMaxSize : a + b;
}

int64_t multiply(int64_t a, int64_t b) {
  return b > 0 && a > kMaxSize / b ? kMaxSize : a * b;
}

int64_t round_up(int64_t value, int64_t block) {
  return value > kMaxSize - (block - 1) ? kMaxSize
                                        : (value + (block - 1)) / block * block;
}

void check_options(const KVCacheOptions& options) {
  checks::check_positive(kCache, "batch_size", options.batch_size());
  checks::check_sizes_of_rows(kCache, options);
  checks::check_positive(kCache, "block", options.block());
  checks::check_positive(
      kCache, "max_length", options.max_length().value_or(kMaxSize));
  checks::check_kept(kCache, options);
  checks::check_positive(kCache, "num_parts", options.num_parts());
  constexpr int64_t kMostParts = 1 << 20;
  TORCH_ATTENTION_CHECK(
      options.num_parts() <= kMostParts,
      "KVCache: expected num_parts <= {}, but got {}",
      kMostParts,
      options.num_parts());
  TORCH_ATTENTION_CHECK(
      options.part() >= 0 && options.part() < options.num_parts(),
      "KVCache: expected a part in [0, num_parts = {}), but got {}",
      options.num_parts(),
      options.part());
  TORCH_ATTENTION_CHECK(
      options.num_parts() == 1 || (!options.window() && !options.chunk()),
      "KVCache: expected no window and no chunk beside num_parts = {}",
      options.num_parts());
}

bool is_int8(const KVCacheOptions& options) {
  return options.dtype() == torch::kInt8;
}

/// Returns the number of elements per token and head.
int64_t row_size(const KVCacheOptions& options) {
  return options.values_in_keys() ? checks::stored_key_size(options)
                                  : add(checks::stored_key_size(options),
                                        checks::stored_value_size(options));
}

/// Returns the view of the values with `values_in_keys`; of int8 without their
/// scales.
torch::Tensor values_in(
    const torch::Tensor& keys,
    const KVCacheOptions& options) {
  return keys.slice(-1, 0, checks::value_dim(options));
}

/// Checks that keys, values and counts of `capacity` rows can fit into memory,
/// before anything is allocated: std::vector would throw other exceptions.
void check_memory(const KVCacheOptions& options, int64_t capacity) {
  constexpr int64_t kMostAddresses = int64_t{1} << 47;
  // The length and start of a sequence, and copies of both.
  constexpr int64_t kBytesOfCounts = 4 * sizeof(int64_t);
  const auto most = options.device().is_cpu()
      ? std::min(kMostAddresses, physical_memory())
      : kMostAddresses;
  const auto size = static_cast<int64_t>(c10::elementSize(options.dtype()));
  auto bytes = multiply(options.num_kv_heads(), row_size(options));
  bytes = multiply(bytes, size);
  bytes = multiply(bytes, std::max<int64_t>(capacity, 1));
  bytes = multiply(add(bytes, kBytesOfCounts), options.batch_size());
  TORCH_ATTENTION_CHECK(
      bytes <= most,
      "KVCache: expected sizes that fit into memory, but got batch_size "
      "= {}, num_kv_heads = {}, head_dim = {}, value_dim = {} and {} "
      "tokens",
      options.batch_size(),
      options.num_kv_heads(),
      options.head_dim(),
      checks::value_dim(options),
      capacity);
}

/// Returns the largest number of rows that remain when older ones are dropped:
/// a window or chunk, and `block` rows for `truncate`.
int64_t remaining_rows(const KVCacheOptions& options) {
  const auto reach =
      options.chunk().value_or(options.window().value_or(kMaxSize));
  return add(reach - 1, options.block());
}

/// Returns how many of the first `length` tokens of a sequence this process
/// stores (`num_parts`).
int64_t rows_of(const KVCacheOptions& options, int64_t length) {
  const auto parts = options.num_parts();
  return length / parts + (length % parts > options.part() ? 1 : 0);
}

/// Returns the largest capacity while T tokens are appended.
int64_t most_rows(const KVCacheOptions& options, int64_t T) {
  return std::min(
      rows_of(options, options.max_length().value_or(kMaxSize)),
      add(remaining_rows(options), std::max(T, options.block())));
}

/// One number per sequence. Tensors, int64 (B) on the CPU, are used only in the
/// public interface: their operators would take much of a decode step's time.
using Counts = std::vector<int64_t>;

const int64_t* read(const torch::Tensor& counts) {
  return counts.const_data_ptr<int64_t>();
}

Counts counts_of(const torch::Tensor& counts) {
  return {read(counts), read(counts) + counts.size(0)};
}

torch::Tensor tensor_of(const Counts& counts) {
  const auto tensor =
      at::empty({static_cast<int64_t>(counts.size())}, torch::kLong);
  std::copy(counts.begin(), counts.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

} // namespace

KVCacheOptions::KVCacheOptions(
    int64_t batch_size,
    int64_t num_kv_heads,
    int64_t head_dim)
    : batch_size_(batch_size),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim) {}

KVCache::KVCache(const KVCacheOptions& options) : options_(options) {
  check_options(options_);
  checks::check_cache_dtype(kCache, options_.dtype());
  state_.rows = allocate(0);
  // The device of a tensor has an index, such as cuda:0 for cuda.
  options_.device(state_.rows.keys.device());
  state_.lengths = state_.rows.starts;
}

KVCache KVCache::clone() const {
  const c10::InferenceMode normal_tensors(false);
  const torch::NoGradGuard no_grad;
  KVCache copy(options_);
  const auto keys = state_.rows.keys.clone();
  copy.state_.rows = {
      keys,
      options_.values_in_keys() ? values_in(keys, options_)
                                : state_.rows.values.clone(),
      state_.rows.starts};
  copy.state_.lengths = state_.lengths;
  copy.state_.peak_length = state_.peak_length;
  return copy;
}

void KVCache::append(
    const torch::Tensor& keys,
    const torch::Tensor& values,
    const torch::Tensor& new_lengths) {
  const torch::NoGradGuard no_grad;
  const auto B = options_.batch_size();
  checks::check_new_rows(kCache, "batch_size", keys, values, B, options_);
  const auto T = keys.size(2);
  const bool has_values = !options_.values_in_keys();
  const auto counts = new_lengths.defined()
      ? counts_of(checks::to_counts(kCache, "new_lengths", new_lengths, B, T))
      : Counts(static_cast<size_t>(B), T);
  const auto most = options_.max_length().value_or(kMaxSize);
  auto lengths = counts_of(state_.lengths);
  const bool was_empty = std::all_of(
      lengths.begin(), lengths.end(), [](int64_t n) { return n == 0; });
  Counts new_rows;
  for (size_t b = 0; b < counts.size(); ++b) {
    const auto length = lengths[b];
    const auto count = counts[b];
    TORCH_ATTENTION_CHECK(
        count <= most - length,
        "KVCache: expected at most {} tokens (max_length), but got {} new "
        "ones for sequence {}, which has {}; the cache is unchanged",
        most,
        count,
        b,
        length);
    lengths[b] += count;
    new_rows.push_back(
        rows_of(options_, lengths[b]) - rows_of(options_, length));
  }
  auto rows = with_room_for(new_rows);
  write(
      rows,
      own_tokens(keys),
      has_values ? own_tokens(values) : values,
      new_rows);
  auto all_lengths = tensor_of(lengths);
  state_.rows = std::move(rows);
  state_.lengths = std::move(all_lengths);
  state_.peak_length = std::max(
      was_empty ? 0 : state_.peak_length,
      *std::max_element(lengths.begin(), lengths.end()));
}

torch::Tensor KVCache::keys() const {
  const auto keys = in_use(state_.rows.keys);
  return is_int8(options_)
      ? kernels::dequantized(keys, options_.head_dim(), torch::kFloat)
      : keys;
}

torch::Tensor KVCache::values() const {
  const auto& rows = is_int8(options_) && options_.values_in_keys()
      ? state_.rows.keys
      : state_.rows.values;
  return is_int8(options_)
      ? kernels::dequantized(
            in_use(rows), checks::value_dim(options_), torch::kFloat)
      : in_use(rows);
}

/// Returns the rows that sequences use, as they are stored.
torch::Tensor KVCache::in_use(const torch::Tensor& rows) const {
  return rows.slice(2, 0, num_rows());
}

void KVCache::truncate(int64_t length) {
  TORCH_ATTENTION_CHECK(
      length >= 0,
      "KVCache: expected to truncate to 0 tokens or more, but got {}",
      length);
  truncate_to(Counts(static_cast<size_t>(options_.batch_size()), length));
}

void KVCache::truncate(const torch::Tensor& lengths) {
  TORCH_CHECK(lengths.defined(), "KVCache: the lengths are undefined");
  truncate_to(counts_of(checks::to_counts(
      kCache, "lengths", lengths, options_.batch_size(), kMaxSize)));
}

void KVCache::truncate_to(torch::IntArrayRef wanted) {
  auto cut = counts_of(state_.lengths);
  auto starts = counts_of(state_.rows.starts);
  for (size_t b = 0; b < cut.size(); ++b) {
    const auto start = starts[b];
    const auto length = std::min(wanted[b], cut[b]);
    if (length < cut[b]) {
      checks::check_truncation(
          kCache, options_, static_cast<int64_t>(b), start, length);
    }
    cut[b] = length;
    starts[b] = length == 0 ? 0 : start;
  }
  auto new_starts = tensor_of(starts);
  state_.lengths = tensor_of(cut);
  state_.rows.starts = std::move(new_starts);
}

void KVCache::reset() {
  truncate(0);
}

void KVCache::reorder(const torch::Tensor& sources) {
  const c10::InferenceMode normal_tensors(false);
  const torch::NoGradGuard no_grad;
  const auto B = options_.batch_size();
  TORCH_CHECK(sources.defined(), "KVCache: the sources are undefined");
  const auto source =
      counts_of(checks::to_counts(kCache, "sources", sources, B, B - 1));
  auto lengths = counts_of(state_.lengths);
  auto starts = counts_of(state_.rows.starts);
  Counts moved;
  Counts from;
  for (int64_t b = 0; b < B; ++b) {
    const auto i = static_cast<size_t>(b);
    if (source[i] != b) {
      moved.push_back(b);
      from.push_back(source[i]);
      lengths[i] = read(state_.lengths)[source[i]];
      starts[i] = read(state_.rows.starts)[source[i]];
    }
  }
  if (moved.empty()) {
    return;
  }
  auto new_starts = tensor_of(starts);
  auto new_lengths = tensor_of(lengths);
  const auto all_keys = in_use(state_.rows.keys);
  const auto all_values = in_use(state_.rows.values);
  if (kernels::can_copy_memory(all_keys)) {
    // Copies all sources first, since rows may be both source and target.
    const auto from_index = tensor_of(from);
    const auto new_keys = all_keys.index_select(0, from_index);
    const auto new_values = options_.values_in_keys()
        ? torch::Tensor()
        : all_values.index_select(0, from_index);
    // Nothing below throws.
    kernels::replace_sequences(all_keys, new_keys, moved);
    if (new_values.defined()) {
      kernels::replace_sequences(all_values, new_values, moved);
    }
  } else {
    const auto index = tensor_of(source).to(options_.device());
    auto new_keys = state_.rows.keys.index_select(0, index);
    state_.rows.values = options_.values_in_keys()
        ? values_in(new_keys, options_)
        : state_.rows.values.index_select(0, index);
    state_.rows.keys = std::move(new_keys);
  }
  state_.rows.starts = std::move(new_starts);
  state_.lengths = std::move(new_lengths);
}

void KVCache::reserve(int64_t length) {
  const auto most = options_.max_length().value_or(kMaxSize);
  TORCH_ATTENTION_CHECK(
      length >= 0 && length <= most,
      "KVCache: expected to reserve between 0 and {} tokens "
      "(max_length), but got {}",
      most,
      length);
  const auto capacity_for =
      std::min(rows_of(options_, length), most_rows(options_, 1));
  if (capacity_for > capacity()) {
    state_.rows = moved(capacity_for, /*drops=*/false);
  }
}

void KVCache::to(torch::Device device) {
  to(device, options_.dtype());
}

void KVCache::to(torch::Dtype dtype) {
  to(options_.device(), dtype);
}

void KVCache::to(torch::Device device, torch::Dtype dtype) {
  checks::check_cache_dtype(kCache, dtype);
  const c10::InferenceMode normal_tensors(false);
  const torch::NoGradGuard no_grad;
  const auto converted = [&](const torch::Tensor& rows, int64_t size) {
    if (dtype == options_.dtype()) {
      return rows.to(device);
    }
    if (dtype == torch::kInt8) {
      return kernels::quantized(rows).to(device);
    }
    return is_int8(options_)
        ? kernels::dequantized(rows, size, dtype).to(device)
        : rows.to(device, dtype);
  };
  auto keys = converted(state_.rows.keys, options_.head_dim());
  auto values = options_.values_in_keys()
      ? values_in(keys, options_)
      : converted(state_.rows.values, checks::value_dim(options_));
  state_.rows.keys = std::move(keys);
  state_.rows.values = std::move(values);
  options_.device(state_.rows.keys.device()).dtype(dtype);
}

/// Allocates rows of zeros. Uninitialised memory could contain NaN, which a
/// kernel that multiplies hidden values by 0 would propagate.
KVCache::Rows KVCache::allocate(int64_t capacity) const {
  check_memory(options_, capacity);
  // A tensor made in inference mode could not be written to outside of it.
  const c10::InferenceMode normal_tensors(false);
  const auto make = [&](int64_t size) {
    return empty_on_large_pages(
               {options_.batch_size(), options_.num_kv_heads(), capacity, size},
               torch::device(options_.device()).dtype(options_.dtype()))
        .zero_();
  };
  auto keys = make(checks::stored_key_size(options_));
  auto values = options_.values_in_keys()
      ? values_in(keys, options_)
      : make(checks::stored_value_size(options_));
  return {keys, values, at::zeros({options_.batch_size()}, torch::kLong)};
}

/// Returns the current rows, or moved ones if there is no room for `new_rows`
/// more rows or if memory can be freed.
KVCache::Rows KVCache::with_room_for(torch::IntArrayRef new_rows) const {
  int64_t T = 0;
  int64_t needed = 0;
  for (size_t b = 0; b < new_rows.size(); ++b) {
    const auto count = new_rows[b];
    T = std::max(T, count);
    needed = std::max(needed, num_rows(static_cast<int64_t>(b)) + count);
  }
  const auto most = most_rows(options_, T);
  if (needed <= capacity() && capacity() <= most) {
    return state_.rows;
  }
  if (needed > most) {
    return moved(most, /*drops=*/true);
  }
  const auto grown = std::max(needed, capacity() + capacity() / 2);
  return moved(
      std::min(most, round_up(grown, options_.block())), /*drops=*/false);
}

/// Copies the rows to the front of new memory. With `drops`, leaves out rows
/// that no later token reads, even after `block` tokens were truncated.
KVCache::Rows KVCache::moved(int64_t new_capacity, bool drops) const {
  const torch::NoGradGuard no_grad;
  auto rows = allocate(new_capacity);
  for (int64_t b = 0; b < options_.batch_size(); ++b) {
    const auto end = num_rows(b);
    const auto start = read(state_.rows.starts)[b];
    const auto truncated = std::max<int64_t>(0, start + end - options_.block());
    const auto begin = drops
        ? std::max<int64_t>(
              0, checks::first_needed(options_, truncated) - start)
        : 0;
    const auto move = [&](const torch::Tensor& from, const torch::Tensor& to) {
      to.select(0, b)
          .slice(1, 0, end - begin)
          .copy_(from.select(0, b).slice(1, begin, end));
    };
    move(state_.rows.keys, rows.keys);
    if (!options_.values_in_keys()) {
      move(state_.rows.values, rows.values);
    }
    rows.starts.mutable_data_ptr<int64_t>()[b] = start + begin;
  }
  return rows;
}

/// Returns the tokens of x (B, G, T, D) that this process stores.
torch::Tensor KVCache::own_tokens(const torch::Tensor& x) const {
  const auto parts = options_.num_parts();
  if (parts == 1) {
    return x;
  }
  const auto T = x.size(2);
  // The index of the first stored token of each sequence.
  const auto first = (options_.part() - state_.lengths).remainder(parts);
  const auto tokens = first.unsqueeze(1) +
      torch::arange(0, (T + parts - 1) / parts, torch::kLong) * parts;
  // `write` ignores indices beyond the last token.
  const auto index = tokens.clamp_max(std::max<int64_t>(T - 1, 0))
                         .to(x.device())
                         .view({x.size(0), 1, -1, 1});
  return x.gather(2, index.expand({-1, x.size(1), -1, x.size(3)}));
}

/// Writes the first `new_rows[b]` rows of `keys` and `values` after the rows of
/// each sequence b.
void KVCache::write(
    const Rows& rows,
    const torch::Tensor& keys,
    const torch::Tensor& values,
    torch::IntArrayRef new_rows) const {
  auto first = counts_of(state_.lengths);
  for (size_t b = 0; b < first.size(); ++b) {
    first[b] = rows_of(options_, first[b]) - read(rows.starts)[b];
  }
  const auto as_stored = [&](const torch::Tensor& x) {
    return is_int8(options_) ? kernels::quantized(x) : x;
  };
  const auto new_keys = as_stored(keys);
  if (options_.values_in_keys()) {
    kernels::write_rows({{rows.keys, new_keys}}, first, new_rows);
    return;
  }
  const auto new_values = as_stored(values);
  kernels::write_rows(
      {{rows.keys, new_keys}, {rows.values, new_values}}, first, new_rows);
}

int64_t KVCache::num_rows(int64_t b) const {
  return rows_of(options_, read(state_.lengths)[b]) -
      read(state_.rows.starts)[b];
}

int64_t KVCache::num_rows() const {
  int64_t most = 0;
  for (int64_t b = 0; b < options_.batch_size(); ++b) {
    most = std::max(most, num_rows(b));
  }
  return most;
}

} // namespace torch_attention
