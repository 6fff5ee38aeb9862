#pragma once

#include <torch/types.h>
#include <torch/version.h>

#include <array>
#include <cstdint>
#include <initializer_list>

// Numbers of few bits as float32. None of these functions throws or allocates.

namespace torch_attention::weights::quantized {

/// The dtypes of scales in most files.
inline constexpr std::initializer_list<torch::ScalarType> kFloats = {
    torch::kFloat,
    torch::kBFloat16,
    torch::kHalf};

/// The float32 values of the 256 bytes of an FP8 dtype.
using ByteTable = std::array<float, 256>;

/// The dtype of exponents with a bias of 127, which older versions of LibTorch
/// do not have: files store them as `Byte`, too.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7
inline constexpr auto kExponent = torch::kFloat8_e8m0fnu;
#else
inline constexpr auto kExponent = torch::kByte;
#endif

/// Returns the values of Float8_e4m3fn, Float8_e5m2 or, for any other dtype, of
/// exponents: 2^(byte - 127), and NaN for 255.
const ByteTable& table_of(torch::ScalarType dtype);

/// The values of FP4 (E2M1), without the highest of the four bits: the sign.
const std::array<float, 16>& fp4_table();

/// Numbers of a tensor as float32. It does not keep the tensor.
class Numbers {
 public:
  Numbers() = default;
  /// Takes float32, float16, bfloat16, and the dtypes of `table_of`.
  explicit Numbers(const torch::Tensor& tensor);

  float at(int64_t index) const;

  /// Writes `count` numbers from `begin` on.
  void copy(int64_t begin, int64_t count, float* to) const;

 private:
  const void* data_ = nullptr;
  torch::ScalarType dtype_ = torch::kFloat;
  const ByteTable* table_ = nullptr;
};

} // namespace torch_attention::weights::quantized
