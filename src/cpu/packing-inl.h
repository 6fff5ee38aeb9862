// Moves tokens into and out of tiles.

#if defined(TORCH_ATTENTION_CPU_PACKING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_PACKING_INL_H_
#undef TORCH_ATTENTION_CPU_PACKING_INL_H_
#else
#define TORCH_ATTENTION_CPU_PACKING_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/head.h>
#include <cpu/vector-inl.h>

#include <hwy/cache_control.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Prefetches a row.
HWY_INLINE void prefetch_row(const void* row, int64_t bytes) {
  const auto* line = static_cast<const char*>(row);
  for (int64_t i = 0; i < bytes; i += 64) {
    hwy::Prefetch(line + i);
  }
}

/// Blocks that are transposed in registers: 8 x 8, 4 x 4 or 2 x 2.
template <typename T>
using BlockTag = hn::CappedTag<T, 32 / sizeof(T)>;
template <typename T>
constexpr int kBlock = static_cast<int>(hn::MaxLanes(BlockTag<T>()));

template <typename T, typename V = hn::VFromD<BlockTag<T>>>
HWY_INLINE void transpose(V (&x)[kBlock<T>]) {
  const BlockTag<T> d;
  constexpr int M = kBlock<T>;
  constexpr int kPerPart = 16 / sizeof(T); // within 128 bits
  V y[M];
  if constexpr (sizeof(T) == 4) {
    const hn::Repartition<double, BlockTag<T>> pairs;
    HWY_UNROLL(2)
    for (int i = 0; i < M; i += 4) {
      const auto a = hn::BitCast(pairs, hn::InterleaveLower(d, x[i], x[i + 1]));
      const auto b = hn::BitCast(pairs, hn::InterleaveUpper(d, x[i], x[i + 1]));
      const auto e =
          hn::BitCast(pairs, hn::InterleaveLower(d, x[i + 2], x[i + 3]));
      const auto f =
          hn::BitCast(pairs, hn::InterleaveUpper(d, x[i + 2], x[i + 3]));
      y[i] = hn::BitCast(d, hn::InterleaveLower(pairs, a, e));
      y[i + 1] = hn::BitCast(d, hn::InterleaveUpper(pairs, a, e));
      y[i + 2] = hn::BitCast(d, hn::InterleaveLower(pairs, b, f));
      y[i + 3] = hn::BitCast(d, hn::InterleaveUpper(pairs, b, f));
    }
  } else {
    HWY_UNROLL(2)
    for (int i = 0; i < M; i += 2) {
      y[i] = hn::InterleaveLower(d, x[i], x[i + 1]);
      y[i + 1] = hn::InterleaveUpper(d, x[i], x[i + 1]);
    }
  }
  if constexpr (M == kPerPart) {
    HWY_UNROLL(8)
    for (int i = 0; i < M; ++i) {
      x[i] = y[i];
    }
  } else {
    HWY_UNROLL(8)
    for (int i = 0; i < kPerPart; ++i) {
      x[i] = hn::ConcatLowerLower(d, y[kPerPart + i], y[i]);
      x[kPerPart + i] = hn::ConcatUpperUpper(d, y[kPerPart + i], y[i]);
    }
  }
}

/// Calls `fn(c)` for blocks of columns that cover `columns`. There must be
/// enough columns for a block; the last block may overlap the one before it.
template <typename T, typename Fn>
HWY_INLINE void for_column_blocks(int64_t columns, const Fn& fn) {
  int64_t c = 0;
  for (; c + kBlock<T> <= columns; c += kBlock<T>) {
    fn(c);
  }
  if (c < columns) {
    fn(columns - kBlock<T>);
  }
}

/// In the place of a scale: numbers are moved and not multiplied. Pairs of
/// bfloat16 that are held as floats would change: some are denormal or NaN as
/// floats.
struct Unscaled {};

template <typename D, typename T>
HWY_INLINE hn::VFromD<D> scaled(D d, hn::VFromD<D> x, T scale) {
  return hn::Mul(x, hn::Set(d, scale));
}

template <typename D>
HWY_INLINE hn::VFromD<D> scaled(D /*d*/, hn::VFromD<D> x, Unscaled /*scale*/) {
  return x;
}

template <typename T>
HWY_INLINE T scaled(T x, T scale) {
  return x * scale;
}

template <typename T>
HWY_INLINE T scaled(T x, Unscaled /*scale*/) {
  return x;
}

/// Sets to[c * width + r] = from.at(first + r)[c] * scale; 0 for r >= rows.
template <typename X, typename Scale, typename T = Compute<X>>
HWY_NOINLINE void pack_transposed(
    const Rows<const X>& from,
    int64_t first,
    int64_t rows,
    int64_t columns,
    Scale scale,
    T* to,
    int64_t width) {
  const BlockTag<T> d;
  constexpr int M = kBlock<T>;
  for (int64_t r = 0; r < width; r += M) {
    const X* row[M];
    HWY_UNROLL(8)
    for (int i = 0; i < M; ++i) {
      row[i] = r + i < rows ? from.at(first + r + i) : nullptr;
    }
    if (columns < M || r >= rows) {
      for (int64_t c = 0; c < columns; ++c) {
        for (int i = 0; i < M; ++i) {
          to[c * width + r + i] =
              row[i] != nullptr ? scaled(get(row[i] + c), scale) : T(0);
        }
      }
      continue;
    }
    for_column_blocks<T>(columns, [&](int64_t c) {
      hn::VFromD<BlockTag<T>> x[M];
      if (r + M <= rows) {
        HWY_UNROLL(8)
        for (int i = 0; i < M; ++i) {
          x[i] = scaled(d, load(d, row[i] + c), scale);
        }
      } else {
        HWY_UNROLL(8)
        for (int i = 0; i < M; ++i) {
          x[i] = row[i] != nullptr ? scaled(d, load(d, row[i] + c), scale)
                                   : hn::Zero(d);
        }
      }
      transpose<T>(x);
      HWY_UNROLL(8)
      for (int i = 0; i < M; ++i) {
        hn::StoreU(x[i], d, to + (c + i) * width + r);
      }
    });
  }
}

/// Sets to.at(first + r)[c] = from[c * width + r] * scale[r].
template <typename T, typename X>
HWY_NOINLINE void unpack_transposed(
    const T* from,
    int64_t width,
    int64_t rows,
    int64_t columns,
    const T* scale,
    const Rows<X>& to,
    int64_t first) {
  const BlockTag<T> d;
  constexpr int M = kBlock<T>;
  for (int64_t r = 0; r < rows; r += M) {
    if (columns < M) {
      for (int64_t i = r; i < HWY_MIN(r + M, rows); ++i) {
        for (int64_t c = 0; c < columns; ++c) {
          put(from[c * width + i] * scale[i], to.at(first + i) + c);
        }
      }
      continue;
    }
    X* row[M];
    HWY_UNROLL(8)
    for (int i = 0; i < M; ++i) {
      row[i] = r + i < rows ? to.at(first + r + i) : nullptr;
    }
    const auto factor = hn::LoadU(d, scale + r);
    for_column_blocks<T>(columns, [&](int64_t c) {
      hn::VFromD<BlockTag<T>> x[M];
      HWY_UNROLL(8)
      for (int i = 0; i < M; ++i) {
        x[i] = hn::Mul(hn::LoadU(d, from + (c + i) * width + r), factor);
      }
      transpose<T>(x);
      if (r + M <= rows) {
        HWY_UNROLL(8)
        for (int i = 0; i < M; ++i) {
          store(x[i], d, row[i] + c);
        }
      } else {
        HWY_UNROLL(8)
        for (int i = 0; i < M; ++i) {
          if (row[i] != nullptr) {
            store(x[i], d, row[i] + c);
          }
        }
      }
    });
  }
}

/// Sets to[r * to_row + c] = from.at(first + r)[c] * scale. `to_row` is
/// `columns` rounded up to vectors; the rest of a row becomes 0. Returns
/// whether all results are finite.
template <typename X, typename Scale, typename T = Compute<X>>
HWY_NOINLINE bool pack_rows(
    const Rows<const X>& from,
    int64_t first,
    int64_t rows,
    int64_t columns,
    Scale scale,
    T* to,
    int64_t to_row) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  const auto zero = hn::Zero(d);
  auto unusual = zero; // 0 * x is NaN for x that is not finite
  const auto whole = columns / N * N;
  for (int64_t r = 0; r < rows; ++r) {
    const auto* in = from.at(first + r);
    auto* out = to + r * to_row;
    for (int64_t c = 0; c < whole; c += N) {
      const auto x = scaled(d, load(d, in + c), scale);
      unusual = hn::MulAdd(x, zero, unusual);
      store(x, d, out + c);
    }
    if (whole < to_row) {
      HWY_ALIGN X rest[N] = {};
      std::memcpy(
          rest, in + whole, static_cast<size_t>(columns - whole) * sizeof(X));
      const auto x = scaled(d, load(d, rest), scale);
      unusual = hn::MulAdd(x, zero, unusual);
      store(x, d, out + whole);
    }
  }
  return hn::AllTrue(d, hn::Eq(unusual, zero));
}

/// Packs rows of one head, `from_row` apart.
template <typename X, typename Scale, typename T = Compute<X>>
HWY_INLINE bool pack_rows(
    const X* from,
    int64_t from_row,
    int64_t rows,
    int64_t columns,
    Scale scale,
    T* to,
    int64_t to_row) {
  return pack_rows(
      Rows<const X>{from, from_row}, 0, rows, columns, scale, to, to_row);
}

/// Stores packed rows, times `scale`.
template <typename T, typename X>
void store_rows(
    const T* from,
    int64_t from_row,
    int64_t rows,
    int64_t columns,
    T scale,
    X* to,
    int64_t to_row) {
  for (int64_t r = 0; r < rows; ++r) {
    const auto* row = from + r * from_row;
    store_each<T>(to + r * to_row, columns, [&](int64_t c, auto d) {
      return hn::Mul(load(d, row + c), hn::Set(d, scale));
    });
  }
}

/// Returns whether all elements of the vectors are finite.
template <typename T>
HWY_INLINE bool all_finite(const T* x, int64_t n) {
  const Tag<T> d;
  const auto zero = hn::Zero(d);
  auto unusual = zero;
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    unusual = hn::MulAdd(load(d, x + i), zero, unusual);
  }
  return hn::AllTrue(d, hn::Eq(unusual, zero));
}

template <typename T>
HWY_INLINE void fill(T* x, int64_t n, T value) {
  const Tag<T> d;
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    store(hn::Set(d, value), d, x + i);
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
