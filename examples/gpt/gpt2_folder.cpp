// GPT-2 in the folders of `save_pretrained`.

#include "folder.h"
#include "gpt2.h"

#include <torch/utils.h>

#include <torch_attention/nn/utils/swap.h>
#include <torch_attention/weights/convert.h>
#include <torch_attention/weights/pretrained.h>
#include <torch_attention/weights/write.h>

#include <cmath>
#include <vector>

namespace gpt {

using torch::Tensor;

namespace {

/// A parameter outside of attention, and its name in a block of Hugging Face,
/// whose linear layers are transposed.
struct Name {
  const char* ours;
  const char* theirs;
  bool transposed;
};

constexpr Name kOfBlock[] = {
    {"norm1.scale", "ln_1.weight", false},
    {"norm1.shift", "ln_1.bias", false},
    {"norm2.scale", "ln_2.weight", false},
    {"norm2.shift", "ln_2.bias", false},
    {"ff.layers.0.weight", "mlp.c_fc.weight", true},
    {"ff.layers.0.bias", "mlp.c_fc.bias", false},
    {"ff.layers.2.weight", "mlp.c_proj.weight", true},
    {"ff.layers.2.bias", "mlp.c_proj.bias", false},
};

constexpr Name kOutside[] = {
    {"tok_emb.weight", "wte.weight", false},
    {"pos_emb.weight", "wpe.weight", false},
    {"final_norm.scale", "ln_f.weight", false},
    {"final_norm.shift", "ln_f.bias", false},
};

std::string block_path(int64_t layer) {
  return "trf_blocks." + std::to_string(layer);
}

/// Calls f(our name, the name below `transformer`, transposed) for all
/// parameters outside of attention and the head.
template <typename F>
void for_each_name(int64_t num_layers, const F& f) {
  for (const auto& name : kOutside) {
    f(name.ours, name.theirs, name.transposed);
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    for (const auto& name : kOfBlock) {
      f(block_path(i) + "." + name.ours,
        "h." + std::to_string(i) + "." + name.theirs,
        name.transposed);
    }
  }
}

/// How the configuration says by what scores are multiplied.
struct ScoreScale {
  bool by_head_dim = true;
  bool by_layer = false;
};

/// Throws c10::Error if GPT-2's configuration has no words for the scales of
/// the blocks' attention.
ScoreScale score_scale_of(Gpt2Impl& model) {
  std::vector<double> scales;
  for (const auto& block : *model.trf_blocks) {
    const auto& att = *block->as<TransformerBlock>()->att;
    const auto usual = 1 / std::sqrt(static_cast<double>(att.head_dim));
    scales.push_back(att.options.scale().value_or(usual));
  }
  const auto usual = 1 /
      std::sqrt(static_cast<double>(
          model.config.emb_dim / model.config.n_heads));
  for (const auto candidate :
       {ScoreScale{true, false},
        ScoreScale{true, true},
        ScoreScale{false, false},
        ScoreScale{false, true}}) {
    bool fits = true;
    for (size_t i = 0; i < scales.size(); ++i) {
      const auto expected = (candidate.by_head_dim ? usual : 1) /
          (candidate.by_layer ? static_cast<double>(i + 1) : 1);
      fits = fits && std::abs(scales[i] - expected) < 1e-6 * expected;
    }
    if (fits) {
      return candidate;
    }
  }
  C10_THROW_ERROR(
      Error, c10::str("GPT-2 has no such scales of scores: ", scales));
}

std::optional<int64_t> token_of(
    const nlohmann::json& fields,
    const char* name) {
  const auto token = field<int64_t>(fields, name, -1);
  return token < 0 ? std::nullopt : std::make_optional(token);
}

/// Returns null for no token.
nlohmann::ordered_json json_of(std::optional<int64_t> token) {
  return token ? nlohmann::ordered_json(*token) : nlohmann::ordered_json();
}

Gpt2Config config_of(const nlohmann::json& fields) {
  const auto activation =
      field<std::string>(fields, "activation_function", "gelu_new");
  TORCH_CHECK(
      activation == "gelu_new" || activation == "gelu_pytorch_tanh",
      "config.json: expected the activation_function gelu_new but got ",
      activation);
  Gpt2Config config;
  config.vocab_size = field<int64_t>(fields, "vocab_size", 50257);
  config.context_length = field<int64_t>(fields, "n_positions", 1024);
  config.emb_dim = field<int64_t>(fields, "n_embd", 768);
  config.n_heads = field<int64_t>(fields, "n_head", 12);
  config.n_layers = field<int64_t>(fields, "n_layer", 12);
  config.hidden_dim = field<int64_t>(fields, "n_inner", 0);
  config.drop_rate = field<double>(fields, "resid_pdrop", 0.1);
  config.norm_eps = field<double>(fields, "layer_norm_epsilon", 1e-5);
  config.qkv_bias = true;
  config.tied = field<bool>(fields, "tie_word_embeddings", true);
  config.bos_token_id = token_of(fields, "bos_token_id");
  config.eos_token_id = token_of(fields, "eos_token_id");
  return config;
}

} // namespace

std::shared_ptr<Gpt2Impl> load_gpt2(
    const std::string& folder,
    torch::Dtype dtype) {
  Gpt2 model(config_of(read_config(folder)));
  model->to(dtype);
  FolderWeights weights(folder);
  const auto prefix = weights.prefix_of("wte.weight");
  const auto parameters = model->named_parameters();
  for_each_name(
      model->config.n_layers,
      [&](const std::string& ours, const std::string& theirs, bool transposed) {
        weights.copy(prefix + theirs, parameters[ours], transposed);
      });
  if (!model->config.tied) {
    weights.copy("lm_head.weight", model->out_head->weight);
  }
  for (int64_t i = 0; i < model->config.n_layers; ++i) {
    torch_attention::replace_module(
        *model,
        block_path(i) + ".att",
        &TransformerBlockImpl::att,
        torch_attention::attention_from_pretrained(
            folder, i, torch_attention::PretrainedOptions().dtype(dtype)));
    weights.take_all(prefix + "h." + std::to_string(i) + ".attn");
  }
  weights.check_all_taken(prefix + "h.");
  model->eval();
  return model.ptr();
}

void save_gpt2(
    Gpt2Impl& model,
    const std::string& folder,
    bool bytes_as_tokens) {
  const torch::NoGradGuard no_gradients;
  const auto& config = model.config;
  const auto scale = score_scale_of(model);
  const auto parameters = model.named_parameters();
  torch::OrderedDict<std::string, Tensor> tensors;
  for_each_name(
      config.n_layers,
      [&](const std::string& ours, const std::string& theirs, bool transposed) {
        const auto& parameter = parameters[ours];
        tensors.insert(
            "transformer." + theirs, transposed ? parameter.t() : parameter);
      });
  torch::OrderedDict<std::string, Tensor> attention;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    const auto path = "transformer.h." + std::to_string(i) + ".attn.";
    auto& att =
        *model.trf_blocks[static_cast<size_t>(i)]->as<TransformerBlock>()->att;
    for (const auto& item : att.named_parameters()) {
      attention.insert(path + item.key(), item.value());
    }
    for (const auto* name : {"W_query.bias", "W_key.bias", "W_value.bias"}) {
      if (!attention.contains(path + name)) { // GPT-2 has them always
        attention.insert(path + name, torch::zeros_like(att.out_proj->bias));
      }
    }
  }
  const auto theirs = torch_attention::convert_layout(
      attention,
      torch_attention::WeightLayout::book(),
      torch_attention::WeightLayout::gpt2());
  tensors.update(theirs.tensors);
  if (!config.tied) {
    tensors.insert("lm_head.weight", model.out_head->weight);
  }
  torch_attention::write_weights(
      tensors,
      folder + "/model.safetensors",
      torch_attention::WriteOptions().metadata({{"format", "pt"}}));
  nlohmann::ordered_json fields = {
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
      {"activation_function", "gelu_new"},
      {"vocab_size", config.vocab_size},
      {"n_positions", config.context_length},
      {"n_embd", config.emb_dim},
      {"n_head", config.n_heads},
      {"n_layer", config.n_layers},
      {"n_inner",
       config.hidden_dim > 0 ? config.hidden_dim : 4 * config.emb_dim},
      {"attn_pdrop", config.drop_rate},
      {"embd_pdrop", config.drop_rate},
      {"resid_pdrop", config.drop_rate},
      {"layer_norm_epsilon", config.norm_eps},
      {"scale_attn_weights", scale.by_head_dim},
      {"scale_attn_by_inverse_layer_idx", scale.by_layer},
      {"tie_word_embeddings", config.tied},
      {"bos_token_id", json_of(config.bos_token_id)},
      {"eos_token_id", json_of(config.eos_token_id)},
  };
  if (bytes_as_tokens) {
    fields["tokens"] = "bytes";
  }
  write_text(folder + "/config.json", fields.dump(2) + "\n");
}

} // namespace gpt
