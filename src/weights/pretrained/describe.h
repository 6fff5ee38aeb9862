#pragma once

#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/image_windows.h>
#include <torch_attention/nn/options/longformer_attention.h>
#include <torch_attention/nn/options/relative_attention.h>
#include <torch_attention/weights/layout.h>
#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/config.h>
#include <weights/pretrained/image_rotary.h>
#include <weights/pretrained/rotary.h>
#include <weights/pretrained/shared_embeddings.h>
#include <weights/pretrained/stored_rotary.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Describes a layer beyond its sizes: what the verbs of models.json do, and the
// functions of families that need more than verbs.

namespace torch_attention::weights::pretrained {

/// The context length of a model without a limit.
inline constexpr int64_t kUnlimited = int64_t{1} << 20;

/// A layer whose configuration is being read.
struct Layer {
  ModelConfig& config;
  int64_t index;
  /// kEncoder or kDecoder in a model with two stacks.
  PretrainedPart part;
  /// Whether this is the decoder's attention to the encoder's output.
  bool is_cross;
  MultiHeadAttentionOptions options;
  /// "full_attention" or "sliding_attention".
  std::string type = "full_attention";
  WeightLayout layout = WeightLayout::llama();
  /// Alternative paths and layouts in files; `{}` stands for the layer.
  std::vector<std::pair<std::string, WeightLayout>> others = {};
  /// Set if the scores add products with relative positions: the kind of these,
  /// and how they are stored. All else is in `options`.
  std::optional<RelativeAttentionOptions> relative = {};
  /// The embeddings of `relative`, if all layers share them.
  std::optional<SharedEmbeddings> shared_embeddings = {};
  /// Set if it sees a window beside global tokens: all of its options.
  std::optional<LongformerAttentionOptions> longformer = {};
  /// The path in the model; `{}` stands for the layer.
  std::string path = {};
  /// Whether the caller has to pass a bias, and which, for messages.
  bool needs_bias = false;
  std::string bias_of_caller = "a bias by the distance of tokens";
  /// Whether the caller has to pass the rotary angles.
  bool needs_rotary = false;
  /// How the angles for an image are computed, if known.
  std::optional<ImageRotary> image_rotary = {};
  /// The input size of keys and values in cross-attention, if it is not d_in.
  std::optional<int64_t> d_context = {};
  /// Whether the caller has to pass the windows of an image's patches.
  bool has_image_windows = false;
  /// Its number within its stage, or `index` without stages.
  int64_t index_in_stage = index;
  /// The windows of an image into which the caller divides it, if any.
  std::optional<ImageWindowOptions> windows = {};
  /// The rotary embedding in the file, if the model reads it there.
  StoredRotary stored_rotary = {};

  int64_t head_dim() const {
    return options.head_dim().value_or(options.d_out() / options.num_heads());
  }
};

double root_of_head_dim(const Layer& layer);

/// Sets number of key heads, head_dim and dropout.
void set_heads(Layer& layer);

/// Sets all four biases by one flag.
void set_biases(Layer& layer, const char* field = "attention_bias");

/// Sets type and window of a layer from `layer_types`. In configurations
/// without this field, it has a window if `has_window`.
void set_type(Layer& layer, bool has_window);

/// Calls `set_type`; by default every `count`-th layer has no window.
void set_type_by_turn(Layer& layer, int64_t count);

/// Calls `set_type`; by default every n-th layer has no window, where n is
/// `sliding_window_pattern`, or `count` without this field.
void set_type_by_pattern(Layer& layer, int64_t count);

/// Removes the window of the last layer.
void make_last_full(Layer& layer);

/// Not causal: half of the window to each side, as in Gemma 3.
void see_both_sides(Layer& layer);

/// Not causal: the window to each side, in encoders whose window is a radius.
void see_radius(Layer& layer);

/// Returns the value of a field, or `otherwise` without one. Throws c10::Error
/// unless it is positive.
int64_t positive(ModelConfig& config, const char* field, int64_t otherwise);

/// Returns whether the layer is not a `count`-th one, counted from 1.
bool is_before_last_of(const Layer& layer, int64_t count);

void set_rotary(
    Layer& layer,
    const RotaryRules& rules = {},
    RotaryPairing pairing = RotaryPairing::kHalves);

/// Sets the rotary embedding from the parameters of the layer's type, which the
/// configuration has to have.
void set_rotary_of_types(Layer& layer);

/// Returns rules with this default of `partial_rotary_factor`.
RotaryRules with_partial(double share);

void set_norm(Layer& layer, HeadNormOptions norm, const char* eps);

/// Throws c10::Error if a flag is set whose effect, `what`, is not computed.
void refuse_flag(Layer& layer, const char* field, const char* what);

/// Refuses "encoder", "decoder", or "cross" for the decoder's attention to the
/// output of the encoder, and says why.
void refuse_stack(
    const Layer& layer,
    const std::string& refused,
    const std::string& why);

/// Returns a layout of four linear layers with these names.
WeightLayout linear_layers(
    const std::string& name,
    const std::string& query,
    const std::string& key,
    const std::string& value,
    const std::string& out);

/// Returns a layout with one linear layer for queries, keys and values.
WeightLayout joined_layout(
    const std::string& name,
    const std::string& joined,
    const std::string& out);

/// Adds the names of Diffusers to the layout, which files of Cosmos 3 have.
void add_names_of_diffusers(Layer& layer);

/// Copies the sizes of heads, biases and dropout to the options of another kind
/// of attention.
template <typename Options>
Options with_heads_of(
    const MultiHeadAttentionOptions& options,
    Options result) {
  return result.num_heads(options.num_heads())
      .num_kv_heads(options.num_kv_heads())
      .head_dim(options.head_dim())
      .qkv_bias(options.qkv_bias())
      .query_bias(options.query_bias())
      .key_bias(options.key_bias())
      .value_bias(options.value_bias())
      .out_bias(options.out_bias())
      .dropout(options.dropout());
}

/// Sets the names of the norms of queries and keys in files.
void rename_norms(
    Layer& layer,
    const std::string& query,
    const std::string& key);

/// Returns `position_embedding_type`; by default "absolute".
std::string positions_of(Layer& layer);

/// Throws c10::Error unless `positions` is "absolute".
void check_absolute(Layer& layer, const std::string& positions);

/// Runs the steps of another type in models.json.
void describe_as(Layer& layer, const std::string& model_type);

using Describe = void (*)(Layer&);

/// A function for the verb "call" of models.json, with its name there.
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
Describers disentangled_describers();
Describers encoder_describers();
Describers longformer_describers();
Describers relative_describers();
Describers vision_describers();
Describers encoder_decoder_describers();
Describers detr_describers();
Describers context_describers();

} // namespace torch_attention::weights::pretrained
