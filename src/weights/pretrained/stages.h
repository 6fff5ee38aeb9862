#pragma once

#include <weights/pretrained/config.h>
#include <weights/pretrained/models_file.h>

#include <cstdint>
#include <string>

// Layers in stages of different sizes, as encoders of images have them.

namespace torch_attention::weights::pretrained {

/// A layer's place; without stages the stage is 0.
struct StagePlace {
  int64_t stage = 0;
  int64_t layer = 0;
};

/// Returns the number of layers of all stages.
int64_t count_stage_layers(ModelConfig& config, const StageNames& names);

/// Returns the stage of a layer, which exists, and its number there.
StagePlace place_of_layer(
    ModelConfig& config,
    const StageNames& names,
    int64_t layer);

/// Returns the size in `field`: a number or, with stages, one for each of them.
int64_t size_of_stage(
    ModelConfig& config,
    const StageNames& names,
    const std::string& field,
    int64_t stage);

} // namespace torch_attention::weights::pretrained
