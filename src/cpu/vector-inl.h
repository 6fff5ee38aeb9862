// Vectors of the instruction set that is being compiled: their shape, and the
// functions that the kernels need on them.

#if defined(TORCH_ATTENTION_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_VECTOR_INL_H_
#undef TORCH_ATTENTION_CPU_VECTOR_INL_H_
#else
#define TORCH_ATTENTION_CPU_VECTOR_INL_H_
#endif

#include <cpu/attention.h>

#include <hwy/highway.h>

#include <cstdint>
#include <limits>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
using Tag = hn::ScalableTag<T>;
template <typename T>
using Vector = hn::VFromD<Tag<T>>;
template <typename T>
using IntTag = hn::RebindToSigned<Tag<T>>;

template <typename T>
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Tag<T>()));

template <typename T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

template <typename T>
constexpr int64_t round_up_to_lanes(int64_t n) {
  return (n + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

// Elements in memory, as lanes to compute with.

template <typename D>
HWY_INLINE hn::VFromD<D> load(D d, const hn::TFromD<D>* x) {
  return hn::LoadU(d, x);
}

template <typename D>
HWY_INLINE hn::VFromD<D> load(D d, const BFloat16* x) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(x));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <typename D>
HWY_INLINE hn::VFromD<D> load(D d, const Float16* x) {
#if HWY_TARGET == HWY_EMU128
  // Highway's own makes numbers of infinity and NaN.
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits =
      hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(x)));
  const auto size = hn::And(bits, hn::Set(d32, 0x7FFFU));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, size));
  const auto number = hn::BitCast(
      d32,
      hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(size)), hn::Set(d, 0x1.0p112F)));
  const auto special = hn::Or(number, hn::Set(d32, 0x7F800000U));
  const auto is_special = hn::Gt(size, hn::Set(d32, 0x7BFFU));
  return hn::BitCast(
      d, hn::Or(sign, hn::IfThenElse(is_special, special, number)));
#else
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(
      d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(x)));
#endif
}

template <typename V, typename D>
HWY_INLINE void store(V x, D d, hn::TFromD<D>* to) {
  hn::StoreU(x, d, to);
}

/// Rounds to nearest, to even between two.
template <typename V, typename D>
HWY_INLINE void store(V x, D /*d*/, BFloat16* to) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<int32_t, D> di;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::BitCast(d32, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1U));
  const auto rounded =
      hn::Add(hn::Add(bits, odd), hn::Set(d32, uint32_t{0x7FFF}));
  const auto nan = hn::RebindMask(d32, hn::Ne(x, x));
  const auto high = hn::ShiftRight<16>(
      hn::IfThenElse(nan, hn::Set(d32, uint32_t{0x7FC00000}), rounded));
  hn::StoreU(
      hn::DemoteTo(d16, hn::BitCast(di, high)),
      d16,
      reinterpret_cast<uint16_t*>(to));
}

template <typename V, typename D>
HWY_INLINE void store(V x, D d, Float16* to) {
#if HWY_TARGET == HWY_EMU128
  // Highway's own rounds towards zero. Here the sum with a power of two that
  // depends on the exponent rounds, and the first product overflows.
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<int32_t, D> di;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::BitCast(d32, x);
  const auto sign = hn::And(bits, hn::Set(d32, 0x80000000U));
  const auto doubled = hn::Add(bits, bits);
  const auto exponent = hn::Max(
      hn::And(doubled, hn::Set(d32, 0xFF000000U)), hn::Set(d32, 0x71000000U));
  const auto power = hn::BitCast(
      d, hn::Add(hn::ShiftRight<1>(exponent), hn::Set(d32, 0x07800000U)));
  const auto small = hn::Mul(
      hn::Mul(hn::Abs(x), hn::Set(d, 0x1.0p112F)), hn::Set(d, 0x1.0p-110F));
  const auto sum = hn::BitCast(d32, hn::Add(power, small));
  const auto number = hn::Add(
      hn::And(hn::ShiftRight<13>(sum), hn::Set(d32, 0x7C00U)),
      hn::And(sum, hn::Set(d32, 0x0FFFU)));
  const auto nan = hn::Gt(doubled, hn::Set(d32, 0xFF000000U));
  const auto half = hn::Or(
      hn::ShiftRight<16>(sign),
      hn::IfThenElse(nan, hn::Set(d32, 0x7E00U), number));
  hn::StoreU(
      hn::DemoteTo(d16, hn::BitCast(di, half)),
      d16,
      reinterpret_cast<uint16_t*>(to));
#else
  (void)d;
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, x), d16, reinterpret_cast<hwy::float16_t*>(to));
#endif
}

template <typename X>
HWY_INLINE Compute<X> get(const X* x) {
  return hn::GetLane(load(hn::CappedTag<Compute<X>, 1>(), x));
}

template <typename T, typename X>
HWY_INLINE void put(T value, X* x) {
  const hn::CappedTag<T, 1> d;
  store(hn::Set(d, value), d, x);
}

/// to[i] = fn(i, d) for all i below n, N at a time while that many are left.
template <typename T, typename X, typename Fn>
HWY_INLINE void store_each(X* to, int64_t n, const Fn& fn) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  int64_t i = 0;
  for (; i + N <= n; i += N) {
    store(fn(i, d), d, to + i);
  }
  const hn::CappedTag<T, 1> one;
  for (; i < n; ++i) {
    store(fn(i, one), one, to + i);
  }
}

/// max(x, low), but NaN stays: of two operands x86 gives the second then.
template <typename V>
HWY_INLINE V at_least(V low, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  return hn::Max(low, x);
#else
  return hn::IfThenElse(hn::Lt(x, low), low, x);
#endif
}

/// What exp gives for less than this is as good as 0 beside the largest weight,
/// 1, yet far enough from denormal numbers that products with it are not.
template <typename T>
constexpr T kLowestExponent = sizeof(T) == 4 ? T(-69) : T(-460);

/// (2^x - 1) / x for |x| <= 1/2, Chebyshev fits: exp(0) is 1 exactly.
template <typename D>
HWY_INLINE hn::VFromD<D> exp2_minus_1_over_x(
    D d,
    hn::VFromD<D> x,
    float /*lane*/) {
  auto y = hn::Set(d, 0.00133813025373207962f);
  y = hn::MulAdd(y, x, hn::Set(d, 0.00966636851538544831f));
  y = hn::MulAdd(y, x, hn::Set(d, 0.0555038101379645743f));
  y = hn::MulAdd(y, x, hn::Set(d, 0.240223490380203614f));
  return hn::MulAdd(y, x, hn::Set(d, 0.693147180559945309f));
}

template <typename D>
HWY_INLINE hn::VFromD<D> exp2_minus_1_over_x(
    D d,
    hn::VFromD<D> x,
    double /*lane*/) {
  auto y = hn::Set(d, 2.57293241773623042e-11);
  y = hn::MulAdd(y, x, hn::Set(d, 4.45581790833606449e-10));
  y = hn::MulAdd(y, x, hn::Set(d, 7.05489730415549928e-9));
  y = hn::MulAdd(y, x, hn::Set(d, 1.01780570877339411e-7));
  y = hn::MulAdd(y, x, hn::Set(d, 1.32154868087055628e-6));
  y = hn::MulAdd(y, x, hn::Set(d, 0.0000152527338415567726));
  y = hn::MulAdd(y, x, hn::Set(d, 0.000154035303933707334));
  y = hn::MulAdd(y, x, hn::Set(d, 0.00133335581464064707));
  y = hn::MulAdd(y, x, hn::Set(d, 0.00961812910762847949));
  y = hn::MulAdd(y, x, hn::Set(d, 0.055504108664821627));
  y = hn::MulAdd(y, x, hn::Set(d, 0.240226506959100712));
  return hn::MulAdd(y, x, hn::Set(d, 0.693147180559945309));
}

/// exp(x) is (1 + `slope` * `fraction`) * `power`, a power of two.
template <typename V>
struct ExpParts {
  V slope;
  V fraction;
  V power;
};

/// For x in [kLowestExponent, about 80].
template <typename T, typename V = Vector<T>>
HWY_INLINE ExpParts<V> exp_parts(V x) {
  const Tag<T> d;
  const IntTag<T> di;
  constexpr int kMantissaBits = sizeof(T) == 4 ? 23 : 52;
  constexpr int kBias = sizeof(T) == 4 ? 127 : 1023;
  // Adding 1.5 * 2^kMantissaBits rounds to an integer, in the lowest bits; with
  // the bias it is the exponent of a power of two.
  const auto rounder =
      hn::Set(d, T(1.5) * (int64_t{1} << kMantissaBits) + T(kBias));
  const auto log2e = hn::Set(d, T(1.4426950408889634074));
  const auto rounded = hn::MulAdd(x, log2e, rounder);
  const auto whole = hn::Sub(rounded, rounder);
  const auto fraction = hn::MulSub(x, log2e, whole);
  return {
      exp2_minus_1_over_x(d, fraction, T()),
      fraction,
      hn::BitCast(d, hn::ShiftLeft<kMantissaBits>(hn::BitCast(di, rounded)))};
}

/// exp(x) for x of at most about 80; for x below kLowestExponent about 0, and
/// exactly 0 if kExactZero. NaN stays.
template <bool kExactZero, typename T, typename V = Vector<T>>
HWY_INLINE V exp(V x) {
  const Tag<T> d;
  const auto low = hn::Set(d, kLowestExponent<T>);
  const auto [slope, fraction, power] = exp_parts<T>(at_least(low, x));
  // A product, not a sum of the bits, which would make numbers of some NaN.
  const auto result =
      hn::Mul(hn::MulAdd(slope, fraction, hn::Set(d, T(1))), power);
  if constexpr (kExactZero) {
    return hn::IfThenZeroElse(hn::Lt(x, low), result);
  }
  return result;
}

/// NaN stays.
template <typename T, typename V = Vector<T>>
HWY_INLINE V tanh(V x) {
  const Tag<T> d;
  // From here on it is 1.
  const auto limit = hn::Set(d, T(20));
  const auto one = hn::Set(d, T(1));
  const auto y =
      hn::IfThenElse(hn::Gt(hn::Abs(x), limit), hn::CopySign(limit, x), x);
  // exp(2 y) - 1, exact to the last digits near 0 as well.
  const auto [slope, fraction, power] = exp_parts<T>(hn::Add(y, y));
  const auto z =
      hn::MulAdd(hn::Mul(slope, fraction), power, hn::Sub(power, one));
  return hn::Div(z, hn::Add(z, hn::Set(d, T(2))));
}

/// What the lanes of a tile's dropout are made of, Philox4x32-7: each 64-bit
/// lane counts a pair of queries and four keys, 16 bits for each weight. Seven
/// rounds are the fewest that pass all tests of BigCrush (Salmon et al. 2011,
/// "Parallel random numbers: as easy as 1, 2, 3").
template <typename T>
struct Philox {
  using Tag32 = hn::Rebind<uint32_t, Tag<T>>;
  using Tag64 = hn::Repartition<uint64_t, Tag32>;

  /// For each query two 16-bit numbers each: keys 0 and 1, keys 2 and 3.
  hn::VFromD<Tag32> bits[2];

  /// Queries t, t + 1, … (t even), keys s to s + 3 (s a multiple of 4).
  HWY_INLINE Philox(int64_t t, int64_t s, int64_t head, uint64_t seed) {
    const Tag64 d;
    const Tag32 d32;
    auto key0 = static_cast<uint32_t>(seed);
    auto key1 = static_cast<uint32_t>(seed >> 32);
    auto c0 = hn::Iota(d, static_cast<uint64_t>(t / 2));
    auto c1 = hn::Set(d, static_cast<uint64_t>(s / 4));
    auto c2 = hn::Set(d, static_cast<uint64_t>(head));
    // More heads than a 32-bit number counts.
    auto c3 = hn::Set(d, static_cast<uint64_t>(head) >> 32);
    const auto m0 = hn::Set(d, uint64_t{0xD2511F53});
    const auto m1 = hn::Set(d, uint64_t{0xCD9E8D57});
    HWY_UNROLL(7)
    for (int round = 0; round < 7; ++round) {
      const auto p0 = hn::MulEven(hn::BitCast(d32, c0), hn::BitCast(d32, m0));
      const auto p1 = hn::MulEven(hn::BitCast(d32, c2), hn::BitCast(d32, m1));
      // Only the low halves of the lanes count; the high ones hold rests.
      c0 = hn::Xor(
          hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, uint64_t{key0}));
      c2 = hn::Xor(
          hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, uint64_t{key1}));
      c1 = p1;
      c3 = p0;
      key0 += 0x9E3779B9U;
      key1 += 0xBB67AE85U;
    }
    bits[0] = join(c0, c1);
    bits[1] = join(c2, c3);
  }

  /// The weights of key s + kKey, 0 where dropped.
  template <int kKey>
  HWY_INLINE Vector<T> keep(Vector<T> x, uint32_t threshold) const {
    const Tag32 d32;
    auto number = kKey % 2 == 0 ? hn::And(bits[kKey / 2], hn::Set(d32, 0xFFFFU))
                                : hn::ShiftRight<16>(bits[kKey / 2]);
    const Tag<T> d;
    const IntTag<T> di;
    using Int = hn::TFromD<IntTag<T>>;
    const auto limit = hn::Set(di, static_cast<Int>(threshold));
    if constexpr (sizeof(T) == 4) {
      const auto dropped = hn::Lt(hn::BitCast(di, number), limit);
      return hn::IfThenZeroElse(hn::RebindMask(d, dropped), x);
    } else {
      const hn::RebindToUnsigned<Tag<T>> du;
      const auto wide = hn::BitCast(di, hn::PromoteTo(du, number));
      return hn::IfThenZeroElse(hn::RebindMask(d, hn::Lt(wide, limit)), x);
    }
  }

 private:
  /// The low halves of `even` and `odd` side by side.
  static HWY_INLINE hn::VFromD<Tag32> join(
      hn::VFromD<Tag64> even,
      hn::VFromD<Tag64> odd) {
    const Tag64 d;
    const auto low = hn::Set(d, uint64_t{0xFFFFFFFF});
    return hn::BitCast(
        Tag32(), hn::Or(hn::And(even, low), hn::ShiftLeft<32>(odd)));
  }
};

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
