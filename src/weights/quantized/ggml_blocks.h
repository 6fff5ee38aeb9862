#pragma once

#include <cstdint>
#include <string_view>

namespace torch_attention::weights::quantized {

/// How ggml (the library of llama.cpp) stores the values of a tensor: in blocks
/// of as many values, or one by one.
struct GgmlType {
  /// Its number in files.
  uint32_t number;
  /// ggml's name, such as "Q4_K".
  std::string_view name;
  /// Values in a block.
  int64_t values;
  /// Bytes of a block.
  int64_t bytes;
  /// Computes the values of `count` blocks, which need not be aligned, with the
  /// bits that `gguf.quants.dequantize` of the Python package gguf computes.
  /// Accepts any bytes. Null if this is not implemented.
  void (*decode)(const uint8_t* blocks, int64_t count, float* values);
};

/// Returns the type with this number in files; null for a number that ggml does
/// not use, or that no file has.
const GgmlType* ggml_type(uint32_t number);

} // namespace torch_attention::weights::quantized
