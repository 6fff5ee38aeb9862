#include <torch_attention/nn/options/temperature.h>

namespace torch_attention {

TemperatureOptions::TemperatureOptions(int64_t floor_scale)
    : floor_scale_(floor_scale) {}

} // namespace torch_attention
