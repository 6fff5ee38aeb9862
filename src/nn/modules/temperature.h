#pragma once

#include <torch_attention/nn/options/temperature.h>

#include <torch/types.h>

#include <iosfwd>

/// Temperature by position. `name` is the module in messages.
namespace torch_attention::detail {

void check_temperature(const char* name, const TemperatureOptions& options);

/// Prints the options that differ from their defaults, each after a comma.
void print_temperature(std::ostream& stream, const TemperatureOptions& options);

/// Multiplies queries (B, H, T, D) of tokens at `positions`, int64 (T) or (B,
/// T), by their factors, in float32 or float64.
torch::Tensor with_temperature(
    const torch::Tensor& queries,
    const torch::Tensor& positions,
    const TemperatureOptions& options);

} // namespace torch_attention::detail
