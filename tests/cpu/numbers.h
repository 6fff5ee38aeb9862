#pragma once

#include <cpu/attention.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace torch_attention::cpu::testing {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A NaN with bits set that no operation sets, as double and as float.
inline double unusual_nan() {
  const uint64_t bits = 0x7FF8000020000001;
  double nan = 0;
  std::memcpy(&nan, &bits, sizeof(nan));
  return nan;
}

/// Returns `x` as it is stored.
inline double number(double x) {
  return x;
}

inline double number(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float result = 0;
  std::memcpy(&result, &bits, sizeof result);
  return double{result};
}

inline double number(Float16 x) {
  const int exponent = x.bits >> 10 & 31;
  const int fraction = x.bits & 1023;
  const double sign = (x.bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) {
    return fraction != 0 ? kNaN : sign * kInfinity;
  }
  return exponent == 0 ? sign * std::ldexp(fraction, -24)
                       : sign * std::ldexp(1024 + fraction, exponent - 25);
}

/// `x` as it is stored; halves round towards zero, which makes inputs as good
/// as others.
template <typename X>
X stored(double x) {
  return static_cast<X>(x);
}

template <>
inline BFloat16 stored(double x) {
  const auto single = static_cast<float>(x);
  uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof bits);
  return {static_cast<uint16_t>(bits >> 16)};
}

template <>
inline Float16 stored(double x) {
  const auto with_sign = [&](int bits) -> Float16 {
    return {static_cast<uint16_t>((std::signbit(x) ? 0x8000 : 0) | bits)};
  };
  const double size = std::abs(x);
  if (std::isnan(x)) {
    return with_sign(0x7E00);
  }
  if (size >= 65536) {
    return with_sign(0x7C00);
  }
  if (size < std::ldexp(1, -14)) {
    return with_sign(static_cast<int>(std::ldexp(size, 24)));
  }
  int exponent = 0;
  const double fraction = std::frexp(size, &exponent);
  const int digits = static_cast<int>(std::ldexp(fraction, 11)) - 1024;
  return with_sign(((exponent + 14) << 10) | digits);
}

/// The lowest finite number.
template <typename X>
X lowest() {
  if constexpr (std::is_same_v<X, Float16>) {
    return stored<X>(-65504);
  } else {
    return stored<X>(double{std::numeric_limits<Compute<X>>::lowest()});
  }
}

} // namespace torch_attention::cpu::testing
