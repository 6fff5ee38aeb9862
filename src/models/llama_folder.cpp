// Llama and its like in the folders of `save_pretrained`.

#include <torch_attention/models/llama.h>

#include <check.h>
#include <format_text.h>
#include <models/folder_weights.h>
#include <models/layers.h>
#include <models/llama_types.h>
#include <models/model_fields.h>
#include <torch_attention/weights/pretrained.h>

#include <algorithm>

namespace torch_attention::models {

namespace {

/// Gemma was trained with the approximation by tanh, which the first files of
/// Gemma 1 call "gelu". Gemma 2 and 3 have a field of another name.
std::string activation_of(const ModelFields& fields, const std::string& type) {
  if (type == "gemma") {
    const auto name = fields.activation("hidden_act", "gelu_pytorch_tanh");
    return name == "gelu" ? "gelu_pytorch_tanh" : name;
  }
  return type.rfind("gemma", 0) == 0
      ? fields.activation("hidden_activation", "gelu_pytorch_tanh")
      : fields.activation("hidden_act", "silu");
}

LlamaOptions llama_options_of(
    const ModelFields& fields,
    const std::string& type,
    const FolderWeights& weights,
    const std::string& prefix) {
  const bool is_gemma = type.rfind("gemma", 0) == 0;
  const auto embedding = weights.matrix_sizes(prefix + "embed_tokens.weight");
  auto options =
      LlamaOptions()
          .vocab_size(embedding[0])
          .hidden_size(embedding[1])
          .norm_eps(fields.number("rms_norm_eps", 1e-6))
          // Others do not read it.
          .mlp_bias(type == "llama" && fields.flag("mlp_bias").value_or(false))
          // Gemma's configurations leave out that it is.
          .tied(fields.flag("tie_word_embeddings").value_or(is_gemma))
          .gemma(is_gemma)
          .norms_after(is_gemma && type != "gemma")
          .activation(activation_of(fields, type));
  fields.check_size("vocab_size", embedding[0]);
  fields.check_size("hidden_size", embedding[1]);
  const auto gate = prefix + "layers.0.mlp.gate_proj.weight";
  if (weights.contains(gate)) {
    options.intermediate_size(weights.matrix_sizes(gate)[0]);
    fields.check_size("intermediate_size", options.intermediate_size());
  }
  // Others do not read it, nor do the classes of models with images.
  if (!fields.are_of_part() && (type == "gemma2" || type == "gemma3_text")) {
    const bool is_default =
        type == "gemma2" && !fields.contains("final_logit_softcapping");
    options.logit_softcap(
        is_default ? 30 : fields.number("final_logit_softcapping"));
  }
  TORCH_ATTENTION_CHECK(
      options.logit_softcap().value_or(1) > 0,
      "expected final_logit_softcapping > 0 in \"{}\", but got {}",
      fields.path(),
      options.logit_softcap().value_or(1));
  return options;
}

} // namespace

bool is_llama_like(const std::string& model_type) {
  return std::find(kLlamaTypes.begin(), kLlamaTypes.end(), model_type) !=
      kLlamaTypes.end();
}

Llama llama_from_pretrained(
    const std::string& folder,
    const PretrainedModelOptions& options) {
  const auto layers = text_layers_of(folder, options);
  TORCH_ATTENTION_CHECK(
      is_llama_like(layers.model_type),
      "expected a model of Llama, Mistral, Qwen2, Qwen3 or Gemma in "
      "\"{}\", but got the model_type \"{}\"",
      folder,
      layers.model_type);
  FolderWeights weights(folder);
  const auto prefix = weights.prefix_of("embed_tokens.weight");
  auto model_options =
      llama_options_of(ModelFields(folder), layers.model_type, weights, prefix);
  model_options.head(options.head());

  for (int64_t i = 0; i < layers.total; ++i) {
    const auto path = format_text("{}layers.{}.", prefix, i);
    weights.take_all(i < layers.count ? path + "self_attn." : path);
  }
  if (options.head() && model_options.tied()) {
    weights.check_tied("lm_head.weight", prefix + "embed_tokens.weight");
  }
  const auto attention = load_attention(
      folder, layers.count, PretrainedOptions().dtype(options.dtype()));
  Llama model(model_options, attention, options.dtype());
  for (auto& item : model->named_parameters()) {
    const auto& name = item.key();
    if (name.rfind("lm_head.", 0) == 0) {
      weights.copy(weights.prefix_of(name) + name, item.value());
    } else if (name.find(".self_attn.") == std::string::npos) {
      weights.copy(prefix + name, item.value());
    }
  }
  if (!options.head()) {
    weights.take_all(prefix + "lm_head.");
    weights.take_all("lm_head.");
  }
  weights.check_all_taken(prefix);
  model->eval();
  return model;
}

} // namespace torch_attention::models
