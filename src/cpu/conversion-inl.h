// Converts elements in memory to lanes of the compute type, and back.

#if defined(TORCH_ATTENTION_CPU_CONVERSION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_CONVERSION_INL_H_
#undef TORCH_ATTENTION_CPU_CONVERSION_INL_H_
#else
#define TORCH_ATTENTION_CPU_CONVERSION_INL_H_
#endif

#include <cpu/vector-inl.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

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
  // Highway's conversion turns infinity and NaN into finite numbers.
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

/// Stores rounded to the nearest number, ties to even.
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
  // Highway's conversion rounds towards zero. Here the sum with a power of two
  // that depends on the exponent does the rounding, and the first product
  // overflows to infinity.
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

/// Calls `fn(i, d)` for all i below n: for whole vectors while they fit, then
/// for one lane at a time.
template <typename T, typename Fn>
HWY_INLINE void for_lanes(int64_t n, const Fn& fn) {
  constexpr int N = kLanes<T>;
  int64_t i = 0;
  for (; i + N <= n; i += N) {
    fn(i, Tag<T>());
  }
  for (; i < n; ++i) {
    fn(i, hn::CappedTag<T, 1>());
  }
}

/// Sets to[i] = fn(i, d) for all i below n, as `for_lanes` calls it.
template <typename T, typename X, typename Fn>
HWY_INLINE void store_each(X* to, int64_t n, const Fn& fn) {
  for_lanes<T>(n, [&](int64_t i, auto d) { store(fn(i, d), d, to + i); });
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
