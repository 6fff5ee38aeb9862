#include <weights/quantized/floats.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <cmath>
#include <limits>

namespace torch_attention::weights::quantized {

namespace {

template <typename T>
ByteTable made_table() {
  ByteTable table{};
  for (size_t byte = 0; byte < table.size(); ++byte) {
    table[byte] =
        static_cast<float>(T(static_cast<uint8_t>(byte), T::from_bits()));
  }
  return table;
}

/// Exponents with a bias of 127; the last one is NaN.
ByteTable made_exponents() {
  ByteTable table{};
  for (size_t byte = 0; byte < table.size(); ++byte) {
    table[byte] = std::ldexp(1.0F, static_cast<int>(byte) - 127);
  }
  table.back() = std::numeric_limits<float>::quiet_NaN();
  return table;
}

} // namespace

const ByteTable& table_of(torch::ScalarType dtype) {
  static const auto e4m3 = made_table<c10::Float8_e4m3fn>();
  static const auto e5m2 = made_table<c10::Float8_e5m2>();
  static const auto exponents = made_exponents();
  return dtype == torch::kFloat8_e4m3fn ? e4m3
      : dtype == torch::kFloat8_e5m2    ? e5m2
                                        : exponents;
}

const std::array<float, 16>& fp4_table() {
  static constexpr std::array<float, 16> kValues = {
      0.0F,
      0.5F,
      1.0F,
      1.5F,
      2.0F,
      3.0F,
      4.0F,
      6.0F,
      -0.0F,
      -0.5F,
      -1.0F,
      -1.5F,
      -2.0F,
      -3.0F,
      -4.0F,
      -6.0F};
  return kValues;
}

Numbers::Numbers(const torch::Tensor& tensor)
    : data_(tensor.const_data_ptr()), dtype_(tensor.scalar_type()) {
  if (dtype_ != torch::kFloat && dtype_ != torch::kHalf &&
      dtype_ != torch::kBFloat16) {
    table_ = &table_of(dtype_);
  }
}

float Numbers::at(int64_t index) const {
  float value = 0;
  copy(index, 1, &value);
  return value;
}

void Numbers::copy(int64_t begin, int64_t count, float* to) const {
  const auto convert = [&](const auto* from) {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<float>(from[begin + i]);
    }
  };
  if (table_ != nullptr) {
    const auto* from = static_cast<const uint8_t*>(data_);
    for (int64_t i = 0; i < count; ++i) {
      to[i] = (*table_)[from[begin + i]];
    }
  } else if (dtype_ == torch::kHalf) {
    convert(static_cast<const c10::Half*>(data_));
  } else if (dtype_ == torch::kBFloat16) {
    convert(static_cast<const c10::BFloat16*>(data_));
  } else {
    convert(static_cast<const float*>(data_));
  }
}

} // namespace torch_attention::weights::quantized
