// The names of tensors in GGUF files, as llama.cpp's gguf package maps those of
// transformers (gguf/tensor_mapping.py).

#include <models/gguf_names.h>

#include <check.h>
#include <models/llama_types.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace torch_attention::models {

namespace {

struct NamePair {
  std::string_view in_gguf;
  /// "" for a part of the configuration.
  std::string_view ours;
  bool transposed = false;
};

/// The names of a kind of model. Those of attention keep their last part: it
/// has a layout of its own in GGUF files.
struct GgufNames {
  std::string_view layers;
  std::string_view attention;
  std::vector<NamePair> outside;
  std::vector<NamePair> in_layer;
};

const GgufNames& llama_names(bool has_norms_after) {
  static const std::vector<NamePair> outside{
      {"token_embd", "model.embed_tokens"},
      {"output_norm", "model.norm"},
      {"output", "lm_head"},
      {"rope_freqs", ""}};
  static const GgufNames usual{
      "model.layers.",
      "self_attn.",
      outside,
      {{"attn_norm", "input_layernorm"},
       {"ffn_norm", "post_attention_layernorm"},
       {"ffn_gate", "mlp.gate_proj"},
       {"ffn_up", "mlp.up_proj"},
       {"ffn_down", "mlp.down_proj"}}};
  static const GgufNames norms_after{
      "model.layers.",
      "self_attn.",
      outside,
      {{"attn_norm", "input_layernorm"},
       {"post_attention_norm", "post_attention_layernorm"},
       {"ffn_norm", "pre_feedforward_layernorm"},
       {"post_ffw_norm", "post_feedforward_layernorm"},
       {"ffn_gate", "mlp.gate_proj"},
       {"ffn_up", "mlp.up_proj"},
       {"ffn_down", "mlp.down_proj"}}};
  return has_norms_after ? norms_after : usual;
}

const GgufNames& gpt2_names() {
  static const GgufNames names{
      "transformer.h.",
      "attn.",
      {{"token_embd", "transformer.wte"},
       {"position_embd", "transformer.wpe"},
       {"output_norm", "transformer.ln_f"},
       {"output", "lm_head"}},
      {{"attn_norm", "ln_1"},
       {"ffn_norm", "ln_2"},
       {"ffn_up", "mlp.c_fc", true},
       {"ffn_down", "mlp.c_proj", true}}};
  return names;
}

const GgufNames& bert_names() {
  static const GgufNames names{
      "encoder.layer.",
      "attention.self.",
      {{"token_embd", "embeddings.word_embeddings"},
       {"position_embd", "embeddings.position_embeddings"},
       {"token_types", "embeddings.token_type_embeddings"},
       {"token_embd_norm", "embeddings.LayerNorm"}},
      {{"attn_output_norm", "attention.output.LayerNorm"},
       {"ffn_up", "intermediate.dense"},
       {"ffn_down", "output.dense"},
       {"layer_output_norm", "output.LayerNorm"}}};
  return names;
}

const GgufNames& names_of_type(const std::string& type) {
  return type == "gpt2" ? gpt2_names()
      : type == "bert"  ? bert_names()
                       : llama_names(type == "gemma2" || type == "gemma3_text");
}

bool is_attention_part(std::string_view part) {
  constexpr std::array<std::string_view, 7> kParts{
      "attn_q",
      "attn_k",
      "attn_v",
      "attn_qkv",
      "attn_output",
      "attn_q_norm",
      "attn_k_norm"};
  return std::find(kParts.begin(), kParts.end(), part) != kParts.end();
}

const NamePair* find_name(
    const std::vector<NamePair>& names,
    std::string_view part) {
  const auto found =
      std::find_if(names.begin(), names.end(), [&](const NamePair& pair) {
        return pair.in_gguf == part;
      });
  return found == names.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_tensor(
    const std::string& model_type,
    const std::string& key) {
  TORCH_ATTENTION_CHECK(
      false,
      "the tensor \"{}\" of the GGUF file is not known of a model of the type "
      "{}",
      key,
      model_type);
}

} // namespace

GgufTensorName name_of_gguf_tensor(
    const std::string& model_type,
    const std::string& key) {
  const auto& names = names_of_type(model_type);
  const auto dot = key.rfind('.');
  const auto suffix = dot == std::string::npos ? "" : key.substr(dot);
  const auto path = key.substr(0, dot);
  const bool is_weight = suffix == ".weight";
  if (!is_weight && suffix != ".bias") {
    refuse_tensor(model_type, key);
  }
  if (path.rfind("blk.", 0) != 0) {
    const auto* name = find_name(names.outside, path);
    if (name == nullptr || (name->ours.empty() && !is_weight)) {
      refuse_tensor(model_type, key);
    }
    return {name->ours.empty() ? "" : std::string(name->ours) + suffix};
  }
  const auto end = path.find('.', 4);
  const auto number = path.substr(4, end - 4);
  const auto part = end == std::string::npos ? "" : path.substr(end + 1);
  if (number.empty() ||
      number.find_first_not_of("0123456789") != std::string::npos) {
    refuse_tensor(model_type, key);
  }
  const auto layer = std::string(names.layers) + number + ".";
  if (is_attention_part(part)) {
    return {layer + std::string(names.attention) + part + suffix};
  }
  const auto* name = find_name(names.in_layer, part);
  if (name == nullptr) {
    refuse_tensor(model_type, key);
  }
  return {
      layer + std::string(name->ours) + suffix, name->transposed && is_weight};
}

} // namespace torch_attention::models
