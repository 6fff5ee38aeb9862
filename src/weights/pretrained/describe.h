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

// Describes a layer beyond its sizes, by a function for each family of models;
// `table.cpp` has the table of them.

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

/// The fields of layers with linear attention, which a softmax has none of.
void ignore_linear_attention(ModelConfig& config);

/// Returns whether the layer is not the last of `count` in turn: in these
/// models every `count`-th layer sees all tokens.
bool is_before_last_of(const Layer& layer, int64_t count);

void set_rotary(
    Layer& layer,
    const RotaryRules& rules = {},
    RotaryPairing pairing = RotaryPairing::kHalves);

/// Gemma 3's, with a theta for each type of layer.
void set_gemma_rotary(Layer& layer);

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

void describe_llama(Layer& layer);
void describe_cohere(Layer& layer);
void describe_ernie4_5(Layer& layer);
void describe_glm(Layer& layer);
void describe_glm4_moe(Layer& layer);
void describe_glm4v(Layer& layer);
void describe_glm_ocr(Layer& layer);
void describe_granite(Layer& layer);
void describe_helium(Layer& layer);
void describe_hunyuan(Layer& layer);
void describe_minimax_m2(Layer& layer);
void describe_nemotron(Layer& layer);
void describe_olmo2(Layer& layer);
void describe_apertus(Layer& layer);
void describe_internlm3(Layer& layer);
void describe_molmo2(Layer& layer);
void describe_persimmon(Layer& layer);
void describe_phi(Layer& layer);
void describe_phi3(Layer& layer);
void describe_phimoe(Layer& layer);
void describe_seed_oss(Layer& layer);
void describe_sarvam_moe(Layer& layer);
void describe_solar_open(Layer& layer);
void describe_stablelm(Layer& layer);
void describe_starcoder2(Layer& layer);
void describe_cohere2(Layer& layer);
void describe_cohere2_moe(Layer& layer);
void describe_cwm(Layer& layer);
void describe_dots1(Layer& layer);
void describe_exaone(Layer& layer);
void describe_exaone4(Layer& layer);
void describe_gemma(Layer& layer);
void describe_gemma2(Layer& layer);
void describe_gemma3(Layer& layer);
void describe_t5gemma(Layer& layer);
void describe_kolibri1(Layer& layer);
void describe_mellum(Layer& layer);
void describe_ministral(Layer& layer);
void describe_mistral(Layer& layer);
void describe_olmo3(Layer& layer);
void describe_qwen2(Layer& layer);
void describe_qwen2_moe(Layer& layer);
void describe_qwen3(Layer& layer);
void describe_qwen3_moe(Layer& layer);
void describe_qwen3_vl(Layer& layer);
void describe_smollm3(Layer& layer);
void describe_afmoe(Layer& layer);
void describe_dbrx(Layer& layer);
void describe_gemma3n(Layer& layer);
void describe_gemma4(Layer& layer);
void describe_embedding_gemma2(Layer& layer);
void describe_gpt_oss(Layer& layer);
void describe_granite_swa(Layer& layer);
void describe_llama4(Layer& layer);
void describe_ministral3(Layer& layer);
void describe_modernbert(Layer& layer);
void describe_modernbert_decoder(Layer& layer);
void describe_olmo(Layer& layer);
void describe_olmoe(Layer& layer);
void describe_qwen3_next(Layer& layer);
void describe_bamba(Layer& layer);
void describe_falcon_h1(Layer& layer);
void describe_granite_hybrid(Layer& layer);
void describe_jamba(Layer& layer);
void describe_lara_mini(Layer& layer);
void describe_lfm2(Layer& layer);
void describe_nemotron_h(Layer& layer);
void describe_olmo_hybrid(Layer& layer);
void describe_biogpt(Layer& layer);
void describe_bloom(Layer& layer);
void describe_codegen(Layer& layer);
void describe_ctrl(Layer& layer);
void describe_falcon(Layer& layer);
void describe_gpt2(Layer& layer);
void describe_gpt_bigcode(Layer& layer);
void describe_gpt_neo(Layer& layer);
void describe_gpt_neox(Layer& layer);
void describe_gpt_neox_japanese(Layer& layer);
void describe_gptj(Layer& layer);
void describe_mpt(Layer& layer);
void describe_openai_gpt(Layer& layer);
void describe_opt(Layer& layer);
void describe_xglm(Layer& layer);
void describe_albert(Layer& layer);
void describe_beit(Layer& layer);
void describe_bert(Layer& layer);
void describe_altclip_vision(Layer& layer);
void describe_blip_text(Layer& layer);
void describe_blip_vision(Layer& layer);
void describe_clip_text(Layer& layer);
void describe_clip_vision(Layer& layer);
void describe_distilbert(Layer& layer);
void describe_esm(Layer& layer);
void describe_eurobert(Layer& layer);
void describe_internvl_vision(Layer& layer);
void describe_mpnet(Layer& layer);
void describe_nomic_bert(Layer& layer);
void describe_roformer(Layer& layer);
void describe_git(Layer& layer);
void describe_tapas(Layer& layer);
void describe_timesformer(Layer& layer);
void describe_vit(Layer& layer);
void describe_videomae(Layer& layer);
void describe_wav2vec2(Layer& layer);
void describe_xlm(Layer& layer);
void describe_dinov3(Layer& layer);
void describe_glm4v_vision(Layer& layer);
void describe_glm_ocr_vision(Layer& layer);
void describe_llama4_vision(Layer& layer);
void describe_bart_vision(Layer& layer);
void describe_mlcd(Layer& layer);
void describe_paddleocr_vision(Layer& layer);
void describe_qwen2_talker(Layer& layer);
void describe_pixtral(Layer& layer);
void describe_qwen_vision(Layer& layer);
void describe_bart(Layer& layer);
void describe_mvp(Layer& layer);
void describe_moonshine(Layer& layer);
void describe_whisper(Layer& layer);
void describe_whisper_encoder(Layer& layer);
void describe_t5(Layer& layer);
void describe_time_series(Layer& layer);
void describe_patchtst(Layer& layer);
void describe_mgp_str(Layer& layer);
void describe_pix2struct_vision(Layer& layer);
void describe_kosmos_vision(Layer& layer);
void describe_dpt(Layer& layer);
void describe_janus_vision(Layer& layer);
void describe_glmasr(Layer& layer);
void describe_voxtral_realtime(Layer& layer);
void describe_mimi(Layer& layer);
void describe_idefics(Layer& layer);
void describe_dia_decoder(Layer& layer);
void describe_dia_encoder(Layer& layer);
void describe_musicgen(Layer& layer);
void describe_trocr(Layer& layer);
void describe_bark(Layer& layer);
void describe_bark_fine(Layer& layer);
void describe_chameleon(Layer& layer);
void describe_flint(Layer& layer);
void describe_aimv2_text(Layer& layer);
void describe_aimv2_vision(Layer& layer);
void describe_cohere_compass(Layer& layer);
void describe_cosmos3(Layer& layer);
void describe_esmc(Layer& layer);
void describe_privacy_filter(Layer& layer);
void describe_gte(Layer& layer);
void describe_jina(Layer& layer);
void describe_minimax(Layer& layer);
void describe_mllama(Layer& layer);
void describe_qwen_audio(Layer& layer);
void describe_qwen_omni_vision(Layer& layer);
} // namespace torch_attention::weights::pretrained
