#include <kernels/cache_rows.h>

#include <kernels/plain.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_assert_async.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace torch_attention::kernels {

torch::Tensor contiguous_rows(const torch::Tensor& rows, torch::Dtype dtype) {
  const auto cast = rows.to(dtype);
  return cast.size(3) > 1 && cast.stride(3) != 1 ? cast.contiguous() : cast;
}

namespace {

/// The number of bytes for which another thread pays.
constexpr int64_t kManyBytes = int64_t{1} << 16;

/// Copies `rows` (B, G, T, D), which are each contiguous: the first `counts[b]`
/// of sequence b, where head g of token t goes to `place(b, g, t)`. A decode
/// step writes so little that calls of tensor operators would take longer than
/// its attention.
template <typename Place>
void copy_memory(
    const torch::Tensor& rows,
    torch::IntArrayRef counts,
    const Place& place) {
  const auto G = rows.size(1);
  const auto size = static_cast<int64_t>(rows.element_size());
  const auto row_bytes = rows.size(3) * size;
  const auto* from = static_cast<const std::byte*>(rows.const_data_ptr());
  const auto T = rows.size(2);
  // Copies tokens [begin, end) of one head.
  const auto copy_tokens = [&](int64_t head, int64_t begin, int64_t end) {
    const auto b = head / G;
    const auto g = head % G;
    const auto count = counts[static_cast<size_t>(b)];
    const auto* source =
        from + (b * rows.stride(0) + g * rows.stride(1)) * size;
    for (auto t = begin; t < std::min(end, count); ++t) {
      std::memcpy(
          place(b, g, t),
          source + t * rows.stride(2) * size,
          static_cast<size_t>(row_bytes));
    }
  };
  const auto grain = kManyBytes / row_bytes + 1;
  at::parallel_for(
      0, rows.size(0) * G * T, grain, [&](int64_t begin, int64_t end) {
        while (begin < end) {
          const auto t = begin % T;
          const auto n = std::min(T - t, end - begin);
          copy_tokens(begin / T, t, t + n);
          begin += n;
        }
      });
}

void write_memory(
    const NewRows& x,
    torch::IntArrayRef first,
    torch::IntArrayRef counts) {
  const auto& cache = x.cache;
  auto rows = contiguous_rows(x.rows, cache.scalar_type());
  if (rows.is_alias_of(cache)) {
    rows = rows.clone();
  }
  const auto size = static_cast<int64_t>(cache.element_size());
  const auto sequence_bytes = cache.stride(0) * size;
  const auto head_bytes = cache.stride(1) * size;
  const auto row_bytes = cache.stride(2) * size;
  auto* to = static_cast<std::byte*>(cache.mutable_data_ptr());
  // Autograd must detect the change of a cache that a graph has saved.
  cache.unsafeGetTensorImpl()->bump_version();
  copy_memory(rows, counts, [&](int64_t b, int64_t g, int64_t t) {
    const auto row = first[static_cast<size_t>(b)] + t;
    return to + b * sequence_bytes + g * head_bytes + row * row_bytes;
  });
}

/// Writes row `token[i]` of sequence `sequence[i]` to the caches' row `row[i]`,
/// for all i. The indices, int64 of one shape, are on the caches' device.
void copy_by_indices(
    std::initializer_list<NewRows> all,
    const torch::Tensor& sequence,
    const torch::Tensor& token,
    const torch::Tensor& row) {
  using torch::indexing::Slice;
  for (const auto& x : all) {
    // (B, G, T, D) -> (indices, G, D)
    const auto taken = x.rows.index({sequence, Slice(), token});
    auto cache = x.cache;
    cache.index_put_({sequence, Slice(), row}, taken.to(cache.scalar_type()));
  }
}

/// Writes rows of sequences that differ, on any device, by operators. One copy
/// brings all indices to it.
void copy_by_counts(
    std::initializer_list<NewRows> all,
    torch::IntArrayRef first,
    torch::IntArrayRef counts) {
  std::vector<int64_t> sequence;
  std::vector<int64_t> token;
  std::vector<int64_t> row;
  for (size_t b = 0; b < counts.size(); ++b) {
    for (int64_t t = 0; t < counts[b]; ++t) {
      sequence.push_back(static_cast<int64_t>(b));
      token.push_back(t);
      row.push_back(first[b] + t);
    }
  }
  const auto n = static_cast<int64_t>(row.size());
  for (const auto* more : {&token, &row}) {
    sequence.insert(sequence.end(), more->begin(), more->end());
  }
  const auto indices = sent_to(
      all.begin()->cache.device(),
      torch::tensor(sequence, torch::kLong).view({3, n}));
  copy_by_indices(all, indices[0], indices[1], indices[2]);
}

} // namespace

bool can_copy_memory(const torch::Tensor& x) {
  return is_plain(x) && !is_traced();
}

void write_rows(
    std::initializer_list<NewRows> all,
    torch::IntArrayRef first,
    torch::IntArrayRef counts) {
  const auto& some = all.begin()->rows;
  if (some.numel() == 0) {
    return;
  }
  const bool plain = std::all_of(all.begin(), all.end(), [](const NewRows& x) {
    return can_copy_memory(x.cache) && can_copy_memory(x.rows);
  });
  if (plain) {
    for (const auto& x : all) {
      write_memory(x, first, counts);
    }
    return;
  }
  const auto T = some.size(2);
  const auto all_are = [](torch::IntArrayRef numbers, int64_t each) {
    return std::all_of(
        numbers.begin(), numbers.end(), [&](int64_t n) { return n == each; });
  };
  if (!all_are(first, first[0]) || !all_are(counts, T)) {
    copy_by_counts(all, first, counts);
    return;
  }
  for (const auto& x : all) {
    x.cache.narrow(2, first[0], T).copy_(x.rows);
  }
}

void write_rows(
    std::initializer_list<NewRows> all,
    const torch::Tensor& first) {
  const auto B = first.size(0);
  const auto T = all.begin()->rows.size(2);
  const auto count = [&](int64_t n) {
    return torch::arange(n, first.options());
  };
  // (B, T); a single token's takes no operator.
  auto row = first.unsqueeze(1);
  if (T != 1) {
    row = row + count(T);
  }
  if (at::globalContext().deterministicAlgorithms()) {
    // scatter_ becomes index_put_ there, which takes rows from the end.
    for (const auto& x : all) {
      at::_assert_async(
          first.ge(0).logical_and(first.le(x.cache.size(2) - T)).all(),
          "decode: expected lengths >= 0 that leave room for the new tokens in "
          "the cache");
    }
    copy_by_indices(
        all,
        count(B).unsqueeze(1).expand_as(row),
        count(T).expand_as(row),
        row);
    return;
  }
  for (const auto& x : all) {
    auto cache = x.cache;
    cache.scatter_(
        2,
        row.view({B, 1, T, 1}).expand(x.rows.sizes()),
        x.rows.to(cache.scalar_type()));
  }
}

void write_rows_to_memory(
    const torch::Tensor& rows,
    torch::IntArrayRef counts,
    c10::function_ref<std::byte*(int64_t b, int64_t g, int64_t t)> place) {
  if (rows.numel() > 0) {
    copy_memory(rows, counts, place);
  }
}

void replace_sequences(
    const torch::Tensor& cache,
    const torch::Tensor& sequences,
    torch::IntArrayRef to) {
  const auto G = sequences.size(1);
  const auto size = static_cast<int64_t>(sequences.element_size());
  const auto head_bytes = sequences.size(2) * sequences.size(3) * size;
  if (head_bytes == 0) {
    return;
  }
  const auto* from = static_cast<const std::byte*>(sequences.const_data_ptr());
  auto* all = static_cast<std::byte*>(cache.mutable_data_ptr());
  // Autograd must detect the change of a cache that a graph has saved.
  cache.unsafeGetTensorImpl()->bump_version();
  const auto grain = kManyBytes / head_bytes + 1;
  at::parallel_for(
      0, sequences.size(0) * G, grain, [&](int64_t begin, int64_t end) {
        for (auto head = begin; head < end; ++head) {
          const auto b = to[static_cast<size_t>(head / G)];
          const auto place = b * cache.stride(0) + head % G * cache.stride(1);
          std::memcpy(
              all + place * size,
              from + head * head_bytes,
              static_cast<size_t>(head_bytes));
        }
      });
}

} // namespace torch_attention::kernels
