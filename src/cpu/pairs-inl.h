// Products of bfloat16 by pairs: two multiply-adds in the time of one, where
// the processor has them (AVX512_BF16; BFDOT of ARM64).
//
// A pair is stored as a float, so that memory, vectors and broadcasts are those
// of floats: the first number in the low half of its bits, the second in the
// high half.

#if defined(TORCH_ATTENTION_CPU_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_PAIRS_INL_H_
#undef TORCH_ATTENTION_CPU_PAIRS_INL_H_
#else
#define TORCH_ATTENTION_CPU_PAIRS_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/vector-inl.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// True if the kernels of this instruction set can multiply numbers stored as X
/// by pairs.
template <typename X>
constexpr bool kHasPairs =
    TORCH_ATTENTION_HAS_PAIRS&& std::is_same_v<X, BFloat16>;

/// Returns true if the kernels multiply numbers stored as X by pairs.
template <typename X>
bool multiplies_pairs() {
  return kHasPairs<X> && has_pairs(instruction_set());
}

constexpr int64_t num_pairs(int64_t n) {
  return (n + 1) / 2;
}

/// Returns sum + a.first * b.first + a.second * b.second.
template <typename V>
HWY_INLINE V add_products_of_pairs(V a, V b, V sum) {
#if HWY_TARGET == HWY_AVX3
  // Highway 1.0 has no target with this instruction, and an intrinsic could not
  // be inlined into functions of another target.
  // NOLINTNEXTLINE(hicpp-no-assembler)
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
#elif TORCH_ATTENTION_HAS_PAIRS
  // BFDOT by its number, which every assembler takes: Clang's refuses the name
  // in code for processors that may not have it. .Lv0 to .Lv31 are the numbers
  // of registers.
  // NOLINTNEXTLINE(hicpp-no-assembler)
  __asm__(
      ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,"
      "25,26,27,28,29,30,31\n"
      ".equ .Lv\\n, \\n\n"
      ".endr\n"
      ".inst 0x6e40fc00 + .L%0 + (.L%1 << 5) + (.L%2 << 16)"
      : "+w"(sum.raw)
      : "w"(a.raw), "w"(b.raw));
#else
  (void)a;
  (void)b;
#endif
  return sum;
}

/// Returns `pairs` with 0 for each number where `other` has 0.
template <typename V>
HWY_INLINE V zero_beside_zero(V pairs, V other) {
  const Tag<float> d;
  const hn::Repartition<uint16_t, Tag<float>> numbers;
  const auto is_zero = hn::Eq(hn::BitCast(numbers, other), hn::Zero(numbers));
  return hn::BitCast(
      d, hn::IfThenZeroElse(is_zero, hn::BitCast(numbers, pairs)));
}

/// Returns the pairs of the lanes of two vectors, rounded to the nearest
/// bfloat16. NaN may become another number if its lowest bits are set, which
/// they are not after conversion from bfloat16 or arithmetic.
template <typename V>
HWY_INLINE V pairs_of(V first, V second) {
  const Tag<float> d;
  const hn::RebindToUnsigned<Tag<float>> bits;
  const auto half = hn::Set(bits, 0x8000U);
  const auto low = hn::ShiftRight<16>(hn::Add(hn::BitCast(bits, first), half));
  const auto high = hn::And(
      hn::Add(hn::BitCast(bits, second), half), hn::Set(bits, 0xFFFF0000U));
  return hn::BitCast(d, hn::Or(low, high));
}

/// Sets pairs[i] to rows 2 i and 2 i + 1 of `x` (rows, width), which holds
/// bfloat16 as floats; a last odd row is paired with zeros. May be in place.
HWY_INLINE void pair_rows(
    const float* x,
    int64_t rows,
    int64_t width,
    float* pairs) {
  const Tag<float> d;
  for (int64_t r = 0; r < rows; r += 2) {
    for (int64_t c = 0; c < width; c += kLanes<float>) {
      const auto* at = x + r * width + c;
      const auto second = r + 1 < rows ? load(d, at + width) : hn::Zero(d);
      store(pairs_of(load(d, at), second), d, pairs + r / 2 * width + c);
    }
  }
}

/// Turns x (rows, width), whole vectors, into pairs of neighbours (rows, width
/// / 2) in the first half of its memory. Column `zero`, if there is one,
/// becomes 0.
HWY_INLINE void pair_columns(
    float* x,
    int64_t rows,
    int64_t width,
    int64_t zero) {
  const Tag<float> d;
  const hn::RebindToUnsigned<Tag<float>> bits;
  const auto half = hn::Set(bits, 0x8000U);
  const auto high = hn::Set(bits, 0xFFFF0000U);
  auto* to = reinterpret_cast<BFloat16*>(x);
  for (int64_t r = 0; r < rows; ++r) {
    if (zero < width) {
      x[r * width + zero] = 0;
    }
    for (auto i = r * width; i < (r + 1) * width; i += kLanes<float>) {
      // Rounds as `pairs_of` does.
      const auto sum = hn::Add(hn::BitCast(bits, load(d, x + i)), half);
      store(hn::BitCast(d, hn::And(sum, high)), d, to + i);
    }
  }
}

/// Sets row r of `to` to the pairs of columns of row r of `from`, and the rest
/// of the row to zero.
template <typename X>
HWY_INLINE void pack_pairs_of_columns(
    const X* from,
    int64_t from_row,
    int64_t rows,
    int64_t columns,
    float* to,
    int64_t to_row) {
  for (int64_t r = 0; r < rows && columns > 0; ++r) {
    auto* out = to + r * to_row;
    const auto last = num_pairs(columns) - 1;
    std::fill(out + last, out + round_up_to_lanes<float>(last + 1), 0.0F);
    std::memcpy(
        out, from + r * from_row, static_cast<size_t>(columns) * sizeof(X));
  }
}

/// Sets row r of `to` to the pairs of rows 2 r and 2 r + 1 of `from`; an odd
/// number of rows ends with zeros. `to_row` is `columns` rounded up to vectors.
HWY_NOINLINE inline void pack_pairs_of_rows(
    const BFloat16* from,
    int64_t from_row,
    int64_t rows,
    int64_t columns,
    float* to,
    int64_t to_row) {
  const Tag<float> d;
  const hn::RebindToUnsigned<Tag<float>> bits;
  const hn::Rebind<uint16_t, Tag<float>> numbers;
  constexpr int N = kLanes<float>;
  HWY_ALIGN uint16_t rest[2][N] = {};
  for (int64_t r = 0; r < rows; r += 2) {
    const auto* in = reinterpret_cast<const uint16_t*>(from + r * from_row);
    const bool is_last = r + 1 == rows;
    auto* out = to + r / 2 * to_row;
    for (int64_t c = 0; c < columns; c += N) {
      const auto* first = in + c;
      const auto* second = first + from_row;
      if (c + N > columns) {
        const auto bytes = static_cast<size_t>(columns - c) * sizeof(*in);
        std::memcpy(rest[0], first, bytes);
        first = rest[0];
        if (!is_last) {
          std::memcpy(rest[1], second, bytes);
          second = rest[1];
        }
      }
      const auto low = hn::PromoteTo(bits, hn::LoadU(numbers, first));
      const auto high = is_last
          ? hn::Zero(bits)
          : hn::ShiftLeft<16>(hn::PromoteTo(bits, hn::LoadU(numbers, second)));
      store(hn::BitCast(d, hn::Or(low, high)), d, out + c);
    }
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
