// Products of bfloat16 by the tiles of AMX: 16 x 16 sums of 32 products each by
// one instruction.
//
//   c[r][lane] += sum over i of a[r][2 i] * b[i][lane].first +
//                               a[r][2 i + 1] * b[i][lane].second
//
// a has its rows as they are in memory, b pairs of rows as `pair_rows` makes
// them, and c has floats: tiles of scores and of outputs have the same order as
// with all other products.

#if defined(TORCH_ATTENTION_CPU_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_AMX_INL_H_
#undef TORCH_ATTENTION_CPU_AMX_INL_H_
#else
#define TORCH_ATTENTION_CPU_AMX_INL_H_
#endif

#include <cpu/attention.h>
#include <cpu/pairs-inl.h>
#include <cpu/vector-inl.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// True if the kernels of this instruction set can multiply numbers stored as X
/// by tiles.
template <typename X>
constexpr bool kHasTiles = HWY_TARGET == HWY_AVX3&& std::is_same_v<X, BFloat16>;

/// Returns true if the kernels multiply numbers stored as X by tiles.
template <typename X>
bool multiplies_tiles() {
  return kHasTiles<X> && instruction_set() == InstructionSet::kAmxBf16;
}

/// The rows and columns of a tile of sums.
constexpr int64_t kTileRows = 16;
/// The numbers of `a` that one instruction multiplies, in each row.
constexpr int64_t kTileDepth = 32;

/// The keys of a block: so many that sums seldom leave the tiles for memory.
constexpr int64_t kTileKeys = 128;
/// The queries whose gradients are computed at once: so many that sums seldom
/// leave the tiles.
constexpr int64_t kWideQueries = 128;

/// Returns true if the backward pass is computed by tiles, which fewer queries
/// and keys would not fill.
template <typename X>
bool backward_goes_by_tiles(const AttentionArguments<X>& a) {
  return multiplies_tiles<X>() && !a.same_bits && a.num_queries > kTileRows &&
      a.num_keys > kTileRows;
}

template <int64_t kMultiple>
constexpr int64_t round_up_to(int64_t n) {
  return (n + kMultiple - 1) / kMultiple * kMultiple;
}

#if HWY_TARGET == HWY_AVX3

// As in `add_products_of_pairs`, intrinsics could not be inlined. The compiler
// uses no tile registers, which may therefore keep numbers from one statement
// to the next.
// NOLINTBEGIN(hicpp-no-assembler)

#undef TORCH_ATTENTION_AMX
#if defined(TORCH_ATTENTION_NO_AMX)
// The assembler is too old, and `is_supported` false.
#define TORCH_ATTENTION_AMX(code) "ud2"
#else
#define TORCH_ATTENTION_AMX(code) code
#endif

template <int kTile>
HWY_INLINE void zero_tile() {
  __asm__ volatile(TORCH_ATTENTION_AMX("tilezero %%tmm%c0") : : "i"(kTile));
}

template <int kTile>
HWY_INLINE void load_tile_from(const void* rows, int64_t row_bytes) {
  __asm__ volatile(TORCH_ATTENTION_AMX("tileloadd (%0,%1,1), %%tmm%c2")
                   :
                   : "r"(rows), "r"(row_bytes), "i"(kTile)
                   : "memory");
}

template <int kTile>
HWY_INLINE void store_tile_to(void* rows, int64_t row_bytes) {
  __asm__ volatile(TORCH_ATTENTION_AMX("tilestored %%tmm%c2, (%0,%1,1)")
                   :
                   : "r"(rows), "r"(row_bytes), "i"(kTile)
                   : "memory");
}

/// Adds the products of tiles kA and kB to tile kSum.
template <int kSum, int kA, int kB>
HWY_INLINE void multiply_tiles() {
  __asm__ volatile(TORCH_ATTENTION_AMX("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0")
                   :
                   : "i"(kSum), "i"(kA), "i"(kB));
}

/// Configures all tiles of the thread as 16 rows of 64 bytes for the object's
/// lifetime, if they are `used`. Discards their contents: LibTorch's kernels
/// keep none between calls, and configure the tiles again.
class Tiles {
 public:
  explicit Tiles(bool used) : used_(used) {
    if (!used_) {
      return;
    }
    alignas(64) Configuration configuration{};
    configuration.palette = 1;
    for (int i = 0; i < 8; ++i) {
      configuration.row_bytes[i] = 64;
      configuration.rows[i] = kTileRows;
    }
    __asm__ volatile(TORCH_ATTENTION_AMX("ldtilecfg %0")
                     :
                     : "m"(configuration));
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  ~Tiles() {
    if (used_) {
      __asm__ volatile(TORCH_ATTENTION_AMX("tilerelease") : : : "memory");
    }
  }

 private:
  struct Configuration {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };

  bool used_;
};

// NOLINTEND(hicpp-no-assembler)

/// The factors: `a` (rows, 2 steps * 16), bfloat16; `b` (steps * 16, width),
/// pairs. Distances of rows in bytes.
struct TileOperands {
  const void* a;
  int64_t a_row;
  const void* b;
  int64_t b_row;
  int64_t steps;
};

HWY_INLINE const void* bytes_after(const void* x, int64_t bytes) {
  return static_cast<const char*>(x) + bytes;
}

/// Computes kRowTiles x kColumnTiles tiles of sums, which start from 0 or, if
/// kLoad, from `sums`.
template <bool kLoad, int kRowTiles, int kColumnTiles>
HWY_INLINE void multiply_block(
    const TileOperands& x,
    float* sums,
    int64_t sums_row) {
  static_assert(kRowTiles <= 2 && kColumnTiles <= 2, "there are 8 tiles");
  constexpr bool kTwoRows = kRowTiles == 2;
  constexpr bool kTwoColumns = kColumnTiles == 2;
  const auto row_bytes = sums_row * static_cast<int64_t>(sizeof(float));
  auto* below = sums + kTileRows * sums_row;
  const auto start = [&](auto tile, const float* from) {
    if constexpr (kLoad) {
      load_tile_from<decltype(tile)::value>(from, row_bytes);
    } else {
      zero_tile<decltype(tile)::value>();
    }
  };
  start(std::integral_constant<int, 0>(), sums);
  if constexpr (kTwoColumns) {
    start(std::integral_constant<int, 1>(), sums + kTileRows);
  }
  if constexpr (kTwoRows) {
    start(std::integral_constant<int, 2>(), below);
  }
  if constexpr (kTwoRows && kTwoColumns) {
    start(std::integral_constant<int, 3>(), below + kTileRows);
  }
  const auto* a = x.a;
  const auto* b = x.b;
  for (int64_t i = 0; i < x.steps; ++i) {
    load_tile_from<6>(b, x.b_row);
    load_tile_from<4>(a, x.a_row);
    multiply_tiles<0, 4, 6>();
    if constexpr (kTwoColumns) {
      load_tile_from<7>(bytes_after(b, 64), x.b_row);
      multiply_tiles<1, 4, 7>();
    }
    if constexpr (kTwoRows) {
      load_tile_from<5>(bytes_after(a, kTileRows * x.a_row), x.a_row);
      multiply_tiles<2, 5, 6>();
    }
    if constexpr (kTwoRows && kTwoColumns) {
      multiply_tiles<3, 5, 7>();
    }
    a = bytes_after(a, 64);
    b = bytes_after(b, kTileRows * x.b_row);
  }
  store_tile_to<0>(sums, row_bytes);
  if constexpr (kTwoColumns) {
    store_tile_to<1>(sums + kTileRows, row_bytes);
  }
  if constexpr (kTwoRows) {
    store_tile_to<2>(below, row_bytes);
  }
  if constexpr (kTwoRows && kTwoColumns) {
    store_tile_to<3>(below + kTileRows, row_bytes);
  }
}

/// Sets sums (rows, columns), or adds to them if kLoad. Rows and columns are
/// multiples of 16.
template <bool kLoad>
HWY_NOINLINE void multiply_by_tiles(
    const TileOperands& x,
    int64_t rows,
    int64_t columns,
    float* sums,
    int64_t sums_row) {
  constexpr int64_t kTwo = 2 * kTileRows;
  for (int64_t c = 0; c < columns; c += kTwo) {
    auto part = x;
    part.b = bytes_after(x.b, c * static_cast<int64_t>(sizeof(float)));
    const bool two_columns = c + kTwo <= columns;
    for (int64_t r = 0; r < rows; r += kTwo) {
      part.a = bytes_after(x.a, r * x.a_row);
      auto* to = sums + r * sums_row + c;
      if (r + kTwo <= rows) {
        two_columns ? multiply_block<kLoad, 2, 2>(part, to, sums_row)
                    : multiply_block<kLoad, 2, 1>(part, to, sums_row);
      } else {
        two_columns ? multiply_block<kLoad, 1, 2>(part, to, sums_row)
                    : multiply_block<kLoad, 1, 1>(part, to, sums_row);
      }
    }
  }
}

/// x[i] *= factor.
template <typename T>
HWY_NOINLINE void scale_all(T* x, int64_t n, T factor) {
  const Tag<T> d;
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    store(hn::Mul(load(d, x + i), hn::Set(d, factor)), d, x + i);
  }
}

/// Stores 32 numbers, rounded to the nearest bfloat16.
HWY_INLINE void store_halves(
    Vector<float> first,
    Vector<float> second,
    BFloat16* to) {
  __m512i halves;
  // NOLINTNEXTLINE(hicpp-no-assembler)
  __asm__("vcvtne2ps2bf16 %2, %1, %0"
          : "=v"(halves)
          : "v"(second.raw), "v"(first.raw));
  _mm512_storeu_si512(to, halves);
}

/// Copies rows of bfloat16, and zeros after the columns up to `to_row`.
template <typename X>
HWY_INLINE void copy_rows(
    const X* from,
    int64_t from_row,
    int64_t rows,
    int64_t columns,
    BFloat16* to,
    int64_t to_row) {
  const auto bytes = static_cast<size_t>(columns) * sizeof(X);
  const auto rest = static_cast<size_t>(to_row - columns) * sizeof(X);
  for (int64_t r = 0; r < rows; ++r) {
    auto* out = to + r * to_row;
    std::memcpy(out, from + r * from_row, bytes);
    if (rest > 0) {
      std::memset(out + columns, 0, rest);
    }
  }
}

/// Returns true if x is finite.
HWY_INLINE bool is_finite(BFloat16 x) {
  return (x.bits & 0x7F80U) != 0x7F80U;
}

/// Copies rows to `to` (rows, columns), with 0 for non-finite numbers, and
/// writes the indices of rows with such numbers to `unusual`. Returns their
/// count.
template <typename X>
int64_t copy_finite_rows(
    const X* from,
    int64_t from_row,
    int64_t rows,
    int64_t columns,
    BFloat16* to,
    int64_t* unusual) {
  int64_t count = 0;
  for (int64_t r = 0; r < rows; ++r) {
    bool finite = true;
    for (int64_t c = 0; c < columns; ++c) {
      const auto x = from[r * from_row + c];
      const bool is = is_finite(x);
      to[r * columns + c].bits = is ? x.bits : uint16_t{0};
      finite &= is;
    }
    if (!finite) {
      unusual[count++] = r;
    }
  }
  return count;
}

/// Sets to[c][r] = from[r][c] for 32 rows and 8 columns.
template <typename X>
HWY_INLINE void transpose_32_rows(
    const X* from,
    int64_t from_row,
    BFloat16* to,
    int64_t to_row) {
  const hn::Full512<uint16_t> d16;
  const hn::Full512<uint32_t> d32;
  const hn::Full512<uint64_t> d64;
  const auto quarter = [&](int64_t r) {
    return _mm_loadu_si128(
        reinterpret_cast<const __m128i*>(from + r * from_row));
  };
  // 16 bytes each of rows r, r + 8, r + 16 and r + 24.
  const auto quarters = [&](int64_t r) {
    auto x = _mm512_castsi128_si512(quarter(r));
    x = _mm512_inserti32x4(x, quarter(r + 8), 1);
    x = _mm512_inserti32x4(x, quarter(r + 16), 2);
    return hn::Vec512<uint16_t>{_mm512_inserti32x4(x, quarter(r + 24), 3)};
  };
  hn::Vec512<uint32_t> low[4];
  hn::Vec512<uint32_t> high[4];
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const auto first = quarters(2 * i);
    const auto second = quarters(2 * i + 1);
    low[i] = hn::BitCast(d32, hn::InterleaveLower(d16, first, second));
    high[i] = hn::BitCast(d32, hn::InterleaveUpper(d16, first, second));
  }
  const auto store_four = [&](const hn::Vec512<uint32_t>(&x)[4], int64_t c) {
    const auto a = hn::BitCast(d64, hn::InterleaveLower(d32, x[0], x[1]));
    const auto b = hn::BitCast(d64, hn::InterleaveUpper(d32, x[0], x[1]));
    const auto e = hn::BitCast(d64, hn::InterleaveLower(d32, x[2], x[3]));
    const auto f = hn::BitCast(d64, hn::InterleaveUpper(d32, x[2], x[3]));
    const auto put_row = [&](int64_t i, auto row) {
      hn::StoreU(
          hn::BitCast(d16, row),
          d16,
          reinterpret_cast<uint16_t*>(to + (c + i) * to_row));
    };
    put_row(0, hn::InterleaveLower(d64, a, e));
    put_row(1, hn::InterleaveUpper(d64, a, e));
    put_row(2, hn::InterleaveLower(d64, b, f));
    put_row(3, hn::InterleaveUpper(d64, b, f));
  };
  store_four(low, 0);
  store_four(high, 4);
}

/// Sets to[c][r] = from[r][c]. Pads with zeros: columns up to a multiple of 16,
/// rows up to one of 32.
template <typename X>
HWY_NOINLINE void transpose_rows(
    const X* from,
    int64_t from_row,
    int64_t rows,
    int64_t columns,
    BFloat16* to,
    int64_t to_row) {
  constexpr int64_t kColumns = 8;
  for (int64_t r = 0; r < rows; r += kTileDepth) {
    const auto some_rows = HWY_MIN(kTileDepth, rows - r);
    for (int64_t c = 0; c < round_up_to<kTileRows>(columns); c += kColumns) {
      const auto* in = from + r * from_row + c;
      auto* out = to + c * to_row + r;
      if (some_rows == kTileDepth && c + kColumns <= columns) {
        transpose_32_rows(in, from_row, out, to_row);
        continue;
      }
      HWY_ALIGN X padded[kTileDepth * kColumns] = {};
      const auto some_columns = HWY_MIN(kColumns, columns - c);
      for (int64_t i = 0; some_columns > 0 && i < some_rows; ++i) {
        std::memcpy(
            padded + i * kColumns,
            in + i * from_row,
            static_cast<size_t>(some_columns) * sizeof(X));
      }
      transpose_32_rows(padded, kColumns, out, to_row);
    }
  }
}

#else // HWY_TARGET == HWY_AVX3

struct Tiles {
  explicit Tiles(bool /*used*/) {}
};

#endif // HWY_TARGET == HWY_AVX3

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
