#pragma once

#include <torch_attention/nn/options/rotary.h>
#include <weights/pretrained/config.h>

#include <cstdint>
#include <string>

namespace torch_attention::weights::pretrained {

/// The rotary embedding of a layer of this type, from `rope_parameters`, or
/// from `rope_theta` and `rope_scaling` as older configurations have it.
/// `partial` is the share of each head that is rotated if the configuration
/// does not say.
RotaryOptions rotary_of(
    ModelConfig& config,
    const std::string& layer_type,
    int64_t head_dim,
    double partial);

/// The fields of the rotary embedding count as asked for.
void ignore_rotary(ModelConfig& config);

} // namespace torch_attention::weights::pretrained
