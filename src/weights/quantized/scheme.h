#pragma once

#include <weights/quantized/grid.h>
#include <weights/quantized/settings.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::weights::quantized {

/// How compressed-tensors quantizes the weights of some modules.
struct Scheme {
  int64_t bits = 8;
  bool is_float = false;
  bool is_symmetric = true;
  /// "tensor", "channel", "group", "tensor_group" or "block".
  std::string strategy;
  int64_t group_size = 0;
  std::pair<int64_t, int64_t> block = {0, 0};
  /// "pack-quantized" and so on; "" if every format may be meant.
  std::string format;

  bool operator==(const Scheme& other) const;

  /// Returns whether one of these formats is meant.
  bool is_in(std::initializer_list<const char*> formats) const;

  /// Returns the blocks of a matrix [rows, columns] that have one scale each.
  /// Throws `Refused` if groups do not divide it.
  Grid grid(int64_t rows, int64_t columns) const;

  /// Throws `Refused` unless `scale` has the shape of the scales.
  void check_scale(const torch::Tensor& scale, const Grid& grid) const;
};

/// Returns the different schemes of a configuration. Throws `Refused` if there
/// are none, or if one is not understood.
std::vector<Scheme> schemes_of(const Settings& settings);

} // namespace torch_attention::weights::quantized
