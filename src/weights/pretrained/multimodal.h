#pragma once

#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/config.h>

#include <string>
#include <vector>

namespace torch_attention::weights::pretrained {

/// "encoder", for example.
std::string name_of(PretrainedPart part);

/// How far tokens of an image in the text see each other to both sides.
enum class ImageBlocks {
  kNone,
  /// Where the prompt has an image.
  kSome,
  /// Every prompt has an image.
  kAll,
};

/// A model of text, images and sound, whose parts have configurations of their
/// own in `text_config`, `vision_config` and `audio_config`.
struct Multimodal {
  /// The `model_type` of the text, where its configuration does not say it.
  std::string text;
  /// That of the images; empty if they are not computed.
  std::string vision = {};
  /// True if the text is meant where no part is given.
  bool is_decoder = true;
  /// That of the sound; empty if it is not computed.
  std::string audio = {};
  /// The object in the configuration that has those of the parts; empty if they
  /// are in the configuration itself.
  std::string inside = {};
  /// A text in the paths of the text and of the images, where those of others
  /// end in the same way.
  std::string text_within = {};
  std::string vision_within = {};
  ImageBlocks blocks = ImageBlocks::kNone;

  std::vector<PretrainedPart> parts() const;
};

/// None for all other models.
const Multimodal* find_multimodal(const std::string& model_type);

/// The known values of `model_type`.
std::vector<std::string> multimodal_types();

/// A part of a model, and its configuration.
struct ModelPart {
  ModelConfig config;
  std::string type;
  PretrainedPart part;
  /// A text in its paths.
  std::string within;
  /// The beginning of its paths, if need be after "model.".
  std::string root = {};
  ImageBlocks blocks = ImageBlocks::kNone;
};

/// Throws c10::Error if the model has no such part, or none is given and it is
/// not clear which is meant.
ModelPart part_of(
    ModelConfig& config,
    const Multimodal& model,
    PretrainedPart part);

} // namespace torch_attention::weights::pretrained
