// Mathematical functions of vectors.

#if defined(TORCH_ATTENTION_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_MATH_INL_H_
#undef TORCH_ATTENTION_CPU_MATH_INL_H_
#else
#define TORCH_ATTENTION_CPU_MATH_INL_H_
#endif

#include <cpu/vector-inl.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Returns max(x, low), but keeps NaN: x86 gives the second operand then.
template <typename V>
HWY_INLINE V at_least(V low, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  return hn::Max(low, x);
#else
  return hn::IfThenElse(hn::Lt(x, low), low, x);
#endif
}

/// The exponential of this number is as good as 0 next to the largest weight,
/// 1, yet so far from denormal numbers that products with it are not denormal.
template <typename T>
constexpr T kLowestExponent = sizeof(T) == 4 ? T(-69) : T(-460);

/// Returns (2^x - 1) / x for |x| <= 1/2 by Chebyshev fits: exp(0) is exactly 1.
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

/// The parts of exp(x) = (1 + `slope` * `fraction`) * `power`, where `power` is
/// a power of two.
template <typename V>
struct ExpParts {
  V slope;
  V fraction;
  V power;
};

/// Returns the parts for x in [kLowestExponent, about 80].
template <typename T, typename V = Vector<T>>
HWY_INLINE ExpParts<V> exp_parts(V x) {
  const Tag<T> d;
  const IntTag<T> di;
  constexpr int kMantissaBits = sizeof(T) == 4 ? 23 : 52;
  constexpr int kBias = sizeof(T) == 4 ? 127 : 1023;
  // Adding 1.5 * 2^kMantissaBits rounds to an integer in the lowest bits; with
  // the bias this integer is the exponent of a power of two.
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

/// Returns exp(x) for x up to about 80. For x below kLowestExponent it is about
/// 0, and exactly 0 if kExactZero. Keeps NaN.
template <bool kExactZero, typename T, typename V = Vector<T>>
HWY_INLINE V exp(V x) {
  const Tag<T> d;
  const auto low = hn::Set(d, kLowestExponent<T>);
  const auto [slope, fraction, power] = exp_parts<T>(at_least(low, x));
  // A product, not a sum of the bits, which would turn some NaN into numbers.
  const auto result =
      hn::Mul(hn::MulAdd(slope, fraction, hn::Set(d, T(1))), power);
  if constexpr (kExactZero) {
    return hn::IfThenZeroElse(hn::Lt(x, low), result);
  }
  return result;
}

#if HWY_TARGET == HWY_AVX3

/// Returns 2^x to 18 bits; 0 where that is too small, 2^0 exactly.
HWY_INLINE Vector<float> exp2_to_18_bits(Vector<float> x) {
  const Tag<float> d;
  // 2^r = 1 + r + r (1 - r) q(r) on [0, 1), q by a minimax fit: the result is
  // continuous at integers.
  const Vector<float> r{_mm512_reduce_ps(x.raw, /*down*/ 9)};
  auto y = hn::Set(d, 0.013555747456848621F);
  y = hn::MulAdd(y, r, hn::Set(d, 0.05203237012028694F));
  y = hn::MulAdd(y, r, hn::Set(d, 0.2413797676563263F));
  y = hn::MulAdd(y, r, hn::Set(d, 0.6930321455001831F));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0F));
  return {_mm512_scalef_ps(y.raw, x.raw)};
}

#endif

/// Returns tanh(x). Keeps NaN.
template <typename T, typename V = Vector<T>>
HWY_INLINE V tanh(V x) {
  const Tag<T> d;
  // tanh is 1 from here on.
  const auto limit = hn::Set(d, T(20));
  const auto one = hn::Set(d, T(1));
  const auto y =
      hn::IfThenElse(hn::Gt(hn::Abs(x), limit), hn::CopySign(limit, x), x);
  // exp(2 y) - 1, exact to the last digits near 0, too.
  const auto [slope, fraction, power] = exp_parts<T>(hn::Add(y, y));
  const auto z =
      hn::MulAdd(hn::Mul(slope, fraction), power, hn::Sub(power, one));
  return hn::Div(z, hn::Add(z, hn::Set(d, T(2))));
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
