// GPT-2 in the folders of `save_pretrained`.

#include <torch_attention/models/gpt2.h>

#include <atomic_file.h>
#include <check.h>
#include <format_text.h>
#include <models/folder_weights.h>
#include <models/layers.h>
#include <models/model_fields.h>
#include <torch_attention/weights/convert.h>
#include <torch_attention/weights/pretrained.h>
#include <torch_attention/weights/write.h>

#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace torch_attention::models {

using torch::Tensor;

namespace {

/// A parameter outside of attention, and its name in a block of Hugging Face,
/// whose linear layers are transposed.
struct Gpt2Name {
  const char* ours;
  const char* theirs;
  bool transposed;
};

constexpr Gpt2Name kOfBlock[] = {
    {"norm1.scale", "ln_1.weight", false},
    {"norm1.shift", "ln_1.bias", false},
    {"norm2.scale", "ln_2.weight", false},
    {"norm2.shift", "ln_2.bias", false},
    {"ff.layers.0.weight", "mlp.c_fc.weight", true},
    {"ff.layers.0.bias", "mlp.c_fc.bias", false},
    {"ff.layers.2.weight", "mlp.c_proj.weight", true},
    {"ff.layers.2.bias", "mlp.c_proj.bias", false},
};

constexpr Gpt2Name kOutside[] = {
    {"tok_emb.weight", "wte.weight", false},
    {"pos_emb.weight", "wpe.weight", false},
    {"final_norm.scale", "ln_f.weight", false},
    {"final_norm.shift", "ln_f.bias", false},
};

std::string block_path(int64_t layer) {
  return format_text("trf_blocks.{}", layer);
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
      f(format_text("{}.{}", block_path(i), name.ours),
        format_text("h.{}.{}", i, name.theirs),
        name.transposed);
    }
  }
}

/// Throws c10::Error that names an option of a block's attention for which
/// GPT-2's configuration has no field. Its scale is left to `score_scale_of`.
void check_attention(
    const Gpt2Options& gpt2,
    int64_t layer,
    const MultiHeadAttentionImpl& attention) {
  const auto& options = attention.options;
  const auto head_dim = gpt2.emb_dim() / gpt2.n_heads();
  const auto dropout = gpt2.attention_drop_rate().value_or(gpt2.drop_rate());
  auto rule = options.rule();
  rule.scale = std::nullopt;
  const std::array<std::pair<const char*, bool>, 24> as_in_gpt2{{
      {"d_in", options.d_in() == gpt2.emb_dim()},
      {"d_out", options.d_out() == gpt2.emb_dim()},
      {"context_length", options.context_length() == gpt2.context_length()},
      {"num_heads", options.num_heads() == gpt2.n_heads()},
      {"num_kv_heads",
       options.num_kv_heads().value_or(gpt2.n_heads()) == gpt2.n_heads()},
      {"head_dim", options.head_dim().value_or(head_dim) == head_dim},
      {"value_dim", options.value_dim().value_or(head_dim) == head_dim},
      {"dropout", attention.dropout->options.p() == dropout},
      {"rule (causal, window, chunk, softcap)",
       rule == ScoreRule::make_causal()},
      {"out_proj", options.out_proj()},
      {"out_bias", options.out_bias()},
      {"qk_norm", !options.qk_norm()},
      {"rotary", !options.rotary()},
      {"alibi", !options.alibi()},
      {"sinks", !options.sinks()},
      {"temperature", !options.temperature()},
      {"clip_qkv", !options.clip_qkv()},
      {"value_norm_eps", !options.value_norm_eps()},
      {"value_scale", options.value_scale() == 1},
      {"query_scale", !options.query_scale()},
      {"out_norm", !options.out_norm()},
      {"output_gate", !options.output_gate()},
      {"needs_blocks", !options.needs_blocks()},
      {"needs_value_input", !options.needs_value_input()},
  }};
  for (const auto& [name, fits] : as_in_gpt2) {
    TORCH_ATTENTION_CHECK(
        fits,
        "save_gpt2: expected attention that GPT-2's configuration "
        "describes, but {} of layer {} differs from it",
        name,
        layer);
  }
}

/// Fields of GPT-2's configuration, and of all, that `config_of` leaves out,
/// and that change what transformers loads.
constexpr std::array kOtherFields{
    "add_cross_attention",
    "auto_map",
    "chunk_size_feed_forward",
    "dtype",
    "hidden_size",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "pruned_heads",
    "quantization_config",
    "reorder_and_upcast_attn",
    "return_dict",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "text_config",
    "torch_dtype",
    "transformers_version",
    "transformers_weights",
    "use_cache"};

void check_note(const nlohmann::ordered_json& config, const std::string& name) {
  TORCH_ATTENTION_CHECK(
      !config.contains(name) &&
          std::find(kOtherFields.begin(), kOtherFields.end(), name) ==
              kOtherFields.end(),
      "save_gpt2: expected notes with names of their own, but \"{}\" is a "
      "field of the configuration, or given twice",
      name);
}

/// The fields of a configuration by which scores are multiplied.
struct ScoreScale {
  bool by_head_dim = true;
  bool by_layer = false;
};

/// Throws c10::Error if GPT-2's configuration has no words for the scales of
/// the blocks' attention.
ScoreScale score_scale_of(Gpt2Impl& model) {
  std::vector<double> scales;
  for (const auto& block : *model.trf_blocks) {
    const auto& att = *block->as<Gpt2Block>()->att;
    const auto usual = 1 / std::sqrt(static_cast<double>(att.head_dim));
    scales.push_back(att.options.scale().value_or(usual));
  }
  const auto head_dim = model.options.emb_dim() / model.options.n_heads();
  const auto usual = 1 / std::sqrt(static_cast<double>(head_dim));
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
      Error,
      format_text(
          "GPT-2 has no such scales of scores: {}", fmt::join(scales, ", ")));
}

Gpt2Options gpt2_options_of(
    const ModelFields& fields,
    const PretrainedModelOptions& options,
    const FolderWeights& weights,
    const std::string& prefix) {
  TORCH_ATTENTION_CHECK(
      !fields.flag("add_cross_attention").value_or(false),
      "\"{}\" has attention to another model's output, which is not run",
      fields.path());
  const auto words = weights.matrix_sizes(prefix + "wte.weight");
  const auto positions = weights.matrix_sizes(prefix + "wpe.weight");
  fields.check_size("vocab_size", words[0]);
  fields.check_size("n_embd", words[1]);
  fields.check_size("n_positions", positions[0]);
  // Absent fields have the class's token, and null is none.
  constexpr int64_t kToken = 50256;
  const auto bos = fields.contains("bos_token_id")
      ? fields.integer("bos_token_id")
      : std::make_optional(kToken);
  const auto eos = fields.contains("eos_token_id")
      ? fields.integers("eos_token_id").value_or(std::vector<int64_t>())
      : std::vector<int64_t>{kToken};
  return Gpt2Options()
      .vocab_size(words[0])
      .context_length(positions[0])
      .emb_dim(words[1])
      .hidden_dim(fields.integer("n_inner"))
      .drop_rate(fields.number("resid_pdrop", 0.1))
      .embedding_drop_rate(fields.number("embd_pdrop", 0.1))
      .attention_drop_rate(fields.number("attn_pdrop", 0.1))
      .norm_eps(fields.number("layer_norm_epsilon", 1e-5))
      .qkv_bias(true)
      .activation(fields.activation("activation_function", "gelu_new"))
      .tied(fields.flag("tie_word_embeddings").value_or(true))
      .head(options.head())
      .bos_token_id(bos)
      .eos_token_id(eos);
}

/// Returns the tensors of the attention by their names in a folder.
torch::OrderedDict<std::string, Tensor> attention_of_folder(Gpt2Impl& model) {
  torch::OrderedDict<std::string, Tensor> ours;
  for (size_t i = 0; i < model.trf_blocks->size(); ++i) {
    const auto path = format_text("transformer.h.{}.attn.", i);
    auto& att = *model.trf_blocks[i]->as<Gpt2Block>()->att;
    for (const auto& item : att.named_parameters()) {
      ours.insert(path + item.key(), item.value());
    }
    for (const auto* name : {"W_query.bias", "W_key.bias", "W_value.bias"}) {
      if (!ours.contains(path + name)) { // GPT-2 has them always
        ours.insert(path + name, at::zeros_like(att.out_proj->bias));
      }
    }
  }
  return convert_layout(ours, WeightLayout::book(), WeightLayout::gpt2())
      .tensors;
}

nlohmann::ordered_json config_of(Gpt2Impl& model) {
  const auto& options = model.options;
  for (size_t i = 0; i < model.trf_blocks->size(); ++i) {
    check_attention(
        options,
        static_cast<int64_t>(i),
        *model.trf_blocks[i]->as<Gpt2Block>()->att);
  }
  const auto scale = score_scale_of(model);
  using Written = nlohmann::ordered_json;
  const auto bos = options.bos_token_id();
  auto eos = Written(options.eos_token_id());
  if (eos.size() < 2) {
    eos = eos.empty() ? Written() : Written(eos[0]);
  }
  const auto rate_or = [&](std::optional<double> rate) {
    return rate.value_or(options.drop_rate());
  };
  return {
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
      {"activation_function", options.activation()},
      {"vocab_size", options.vocab_size()},
      {"n_positions", options.context_length()},
      {"n_embd", options.emb_dim()},
      {"n_head", options.n_heads()},
      {"n_layer", options.n_layers()},
      {"n_inner", options.hidden_dim().value_or(4 * options.emb_dim())},
      {"attn_pdrop", rate_or(options.attention_drop_rate())},
      {"embd_pdrop", rate_or(options.embedding_drop_rate())},
      {"resid_pdrop", options.drop_rate()},
      {"layer_norm_epsilon", options.norm_eps()},
      {"scale_attn_weights", scale.by_head_dim},
      {"scale_attn_by_inverse_layer_idx", scale.by_layer},
      {"tie_word_embeddings", options.tied()},
      {"bos_token_id", bos ? Written(*bos) : Written()},
      {"eos_token_id", eos},
  };
}

} // namespace

Gpt2 gpt2_from_pretrained(
    const std::string& folder,
    const PretrainedModelOptions& options) {
  const auto layers = text_layers_of(folder, options);
  TORCH_ATTENTION_CHECK(
      layers.model_type == "gpt2",
      "expected the model_type gpt2 in \"{}\", but got \"{}\"",
      folder,
      layers.model_type);
  FolderWeights weights(folder);
  const auto prefix = weights.prefix_of("wte.weight");
  for (int64_t i = 0; i < layers.total; ++i) {
    const auto path = format_text("{}h.{}.", prefix, i);
    weights.take_all(i < layers.count ? path + "attn." : path);
  }
  const auto attention = load_attention(
      folder, layers.count, PretrainedOptions().dtype(options.dtype()));
  Gpt2 model(
      gpt2_options_of(ModelFields(folder), options, weights, prefix),
      attention);
  model->to(options.dtype());
  if (model->out_head.is_empty() && options.head()) {
    weights.check_tied("lm_head.weight", prefix + "wte.weight");
  }
  const auto parameters = model->named_parameters();
  for_each_name(
      layers.count,
      [&](const std::string& ours, const std::string& theirs, bool transposed) {
        weights.copy(prefix + theirs, parameters[ours], transposed);
      });
  if (!model->out_head.is_empty()) {
    weights.copy("lm_head.weight", model->out_head->weight);
  }
  if (!options.head()) {
    weights.take_all("lm_head.");
  }
  weights.check_all_taken(prefix + "h.");
  model->eval();
  return model;
}

void save_gpt2(
    Gpt2Impl& model,
    const std::string& folder,
    const std::vector<std::pair<std::string, std::string>>& notes) {
  const c10::NoGradGuard no_gradients;
  TORCH_CHECK(
      model.options.head(), "expected a Gpt2 with a head, which files have");
  auto config = config_of(model);
  for (const auto& [name, value] : notes) {
    check_note(config, name);
    config[name] = value;
  }
  // Bytes that are no UTF-8 are replaced, so that nothing fails behind the
  // weights.
  const auto text = config.dump(
                        2,
                        ' ',
                        /*ensure_ascii=*/false,
                        nlohmann::ordered_json::error_handler_t::replace) +
      "\n";
  const auto parameters = model.named_parameters();
  torch::OrderedDict<std::string, Tensor> tensors;
  for_each_name(
      model.options.n_layers(),
      [&](const std::string& ours, const std::string& theirs, bool transposed) {
        const auto& parameter = parameters[ours];
        tensors.insert(
            "transformer." + theirs, transposed ? parameter.t() : parameter);
      });
  tensors.update(attention_of_folder(model));
  if (!model.out_head.is_empty()) {
    tensors.insert("lm_head.weight", model.out_head->weight);
  }
  // Begun before the weights: if it cannot be written, they stay, too.
  AtomicFile file(folder + "/config.json");
  file.write(text.data(), text.size());
  write_weights(
      tensors,
      folder + "/model.safetensors",
      WriteOptions().metadata({{"format", "pt"}}));
  file.commit();
}

} // namespace torch_attention::models
