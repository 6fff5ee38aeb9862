#pragma once

#include <torch_attention/nn/options/attention.h>
#include <torch_attention/weights/layout.h>
#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/config.h>
#include <weights/pretrained/image_rotary.h>
#include <weights/pretrained/rotary.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Describes a layer beyond its sizes: what the verbs of models.json do, and the
// functions of families that need more than verbs.

namespace torch_attention::weights::pretrained {

/// A layer that is being described.
struct Layer {
  ModelConfig& config;
  int64_t index;
  /// kEncoder or kDecoder of a model with two stacks.
  PretrainedPart part;
  /// The decoder's attention to the encoder's output.
  bool is_cross;
  MultiHeadAttentionOptions options;
  /// "full_attention" or "sliding_attention".
  std::string type = "full_attention";
  WeightLayout layout = WeightLayout::llama();
  /// Other paths and layouts of the same, which files may have; `{}` stands for
  /// the layer.
  std::vector<std::pair<std::string, WeightLayout>> others = {};
  /// The path in the model, if that of the table does not say it.
  std::string path = {};
  /// Adds a bias to the scores that only the caller can give.
  bool needs_bias = false;
  /// Rotates by angles that only the caller can give.
  bool needs_rotary = false;
  /// The making of those of an image, if it is known.
  std::optional<ImageRotary> image_rotary = {};
  /// The size of what cross-attention reads, if it is not d_in.
  std::optional<int64_t> d_context = {};
  /// Sees a window of an image's patches, which only the caller can say.
  bool has_image_windows = false;

  int64_t head_dim() const {
    return options.head_dim().value_or(options.d_out() / options.num_heads());
  }
};

double root_of_head_dim(const Layer& layer);

/// Grouped heads, a size of heads, dropout.
void set_heads(Layer& layer);

/// One flag, `attention_bias` if no other, for all four biases.
void set_biases(Layer& layer, const char* field = "attention_bias");

/// The type of a layer from `layer_types`, or by `otherwise` in configurations
/// that are older than that field, and the window of that type.
void set_type(Layer& layer, bool otherwise);

/// The layers before the last of so many in turn have a window, unless
/// `layer_types` says otherwise.
void set_type_by_turn(Layer& layer, int64_t count);

/// `sliding_window_pattern` may say how many.
void set_type_by_pattern(Layer& layer, int64_t count);

/// The last layer sees all tokens, whatever its type.
void make_last_full(Layer& layer);

/// Half of the window to each side, as Gemma 3 does, or all tokens.
void see_both_sides(Layer& layer);

/// The window to each side, as encoders have it whose window is a radius, or
/// all tokens.
void see_radius(Layer& layer);

/// Returns whether the layer is not the last of `count` in turn: in these
/// models every `count`-th layer sees all tokens.
bool is_before_last_of(const Layer& layer, int64_t count);

void set_rotary(
    Layer& layer,
    const RotaryRules& rules = {},
    RotaryPairing pairing = RotaryPairing::kHalves);

/// By parameters of each type of layer, which the configuration has to have.
void set_rotary_of_types(Layer& layer);

/// A model that rotates this share of each head unless its configuration says
/// otherwise.
RotaryRules with_partial(double share);

void set_norm(Layer& layer, HeadNormOptions norm, const char* eps);

/// Throws c10::Error that names the field unless the flag is off: `what` it
/// means is not computed.
void refuse_flag(Layer& layer, const char* field, const char* what);

/// A layout of four linear layers under these names.
WeightLayout linear_layers(
    const std::string& name,
    const std::string& query,
    const std::string& key,
    const std::string& value,
    const std::string& out);

/// A layout of queries, keys and values in one layer, one after the other.
WeightLayout joined_layout(
    const std::string& name,
    const std::string& joined,
    const std::string& out);

/// Files of Cosmos 3 have the names of Diffusers.
void add_names_of_diffusers(Layer& layer);

/// The norms of queries and keys have these names.
void rename_norms(
    Layer& layer,
    const std::string& query,
    const std::string& key);

/// "absolute" if the configuration does not say it.
std::string positions_of(Layer& layer);

/// Throws c10::Error unless these are the positions.
void check_absolute(Layer& layer, const std::string& positions);

/// Runs the steps of another type in models.json.
void describe_as(Layer& layer, const std::string& model_type);

using Describe = void (*)(Layer&);

/// A function that the verb "call" of models.json knows by this name.
struct Describer {
  const char* name;
  Describe describe;
};

using Describers = std::vector<Describer>;

/// The functions of each file.
Describers llama_describers();
Describers window_describers();
Describers own_rule_describers();
Describers hybrid_describers();
Describers gpt_describers();
Describers encoder_describers();
Describers vision_describers();
Describers encoder_decoder_describers();

} // namespace torch_attention::weights::pretrained
