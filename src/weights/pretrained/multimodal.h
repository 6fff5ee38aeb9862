#pragma once

#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/config.h>

#include <string>
#include <vector>

namespace torch_attention::weights::pretrained {

/// Returns the name of a part, such as "encoder".
std::string name_of(PretrainedPart part);

/// Whether the tokens of an image in the prompt see each other in both
/// directions.
enum class ImageBlocks {
  kNone,
  /// If the prompt has an image.
  kSome,
  /// Always: every prompt has an image.
  kAll,
};

/// A model for text, images and sound: `parts` of an entry of models.json. Its
/// parts have their configurations in `text_config`, `vision_config` and
/// `audio_config`.
struct Multimodal {
  /// The `model_type` of the text model, if its configuration has none.
  std::string text;
  /// The `model_type` of the image encoder; empty if it is not computed.
  std::string vision;
  /// The `model_type` of the sound encoder; empty if it is not computed.
  std::string audio;
  /// Whether PretrainedPart::kAuto means the text model, which then is causal.
  bool has_default = true;
  /// The field with the configurations of the parts; empty if they are at the
  /// top level. Its `model_type`, if it matters.
  std::string inside;
  std::string inside_type;
  /// The parts whose class is given, whatever `model_type` they have.
  std::vector<PretrainedPart> fixed;
  /// Whether files may have the fields of the text model at the top level, and
  /// which of these the class then ignores.
  bool may_be_flat = false;
  std::vector<std::string> ignored_if_flat;
  /// The fields of the text model that its configuration has by default in this
  /// model, where they differ from those of its class.
  Json text_defaults;
  /// The field with the configuration of the image encoder, and its name
  /// before.
  std::string vision_field = "vision_config";
  std::string older_vision_field;
  /// Whether "text_config_dict" and its kin replace the configurations of
  /// parts.
  bool has_config_dicts = false;
  /// The field with the configuration of the sound encoder.
  std::string audio_field = "audio_config";
  /// A substring of the paths of text and image model in files, if other paths
  /// have the same end.
  std::string text_within;
  std::string vision_within;
  ImageBlocks blocks = ImageBlocks::kNone;

  std::vector<PretrainedPart> parts() const;
};

/// Returns the model of this type, or null.
const Multimodal* find_multimodal(const std::string& model_type);

/// Returns the known values of `model_type`.
std::vector<std::string> multimodal_types();

/// A part of a model, and its configuration.
struct ModelPart {
  ModelConfig config;
  std::string type;
  PretrainedPart part;
  /// A substring of its paths in files.
  std::string within;
  /// The beginning of its paths in files, possibly after "model.".
  std::string root = {};
  ImageBlocks blocks = ImageBlocks::kNone;
};

/// Returns a part of a model. Throws c10::Error if the model has no such part,
/// or if `part` is kAuto and there is no default.
ModelPart part_of(
    ModelConfig& config,
    const Multimodal& model,
    PretrainedPart part);

} // namespace torch_attention::weights::pretrained
