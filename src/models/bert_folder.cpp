// Encoders of BERT's kind in the folders of `save_pretrained`.

#include <torch_attention/models/bert.h>

#include <check.h>
#include <format_text.h>
#include <models/folder_weights.h>
#include <models/layers.h>
#include <models/model_fields.h>
#include <torch_attention/weights/pretrained.h>

#include <algorithm>

namespace torch_attention::models {

namespace {

/// The names that a kind of model gives to the parts of a layer in its files.
struct BertNames {
  const char* layer;
  const char* attention_norm;
  const char* up;
  const char* down;
  const char* output_norm;
};

constexpr BertNames kBertNames{
    "encoder.layer",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm"};
constexpr BertNames kMpnetNames{
    "encoder.layer",
    "attention.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm"};
constexpr BertNames kDistilBertNames{
    "transformer.layer",
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm"};

const BertNames& names_of(const std::string& type) {
  return type == "distilbert" ? kDistilBertNames
      : type == "mpnet"       ? kMpnetNames
                              : kBertNames;
}

/// Returns the attention of the first `count` layers.
BertOptions bert_options_of(
    const ModelFields& fields,
    const std::string& type,
    const FolderWeights& weights,
    const std::string& prefix) {
  const bool is_distil = type == "distilbert";
  const bool is_electra = type == "electra";
  const auto words =
      weights.matrix_sizes(prefix + "embeddings.word_embeddings.weight");
  auto options =
      BertOptions()
          .vocab_size(words[0])
          .embedding_size(words[1])
          .hidden_size(fields.integer(
              is_distil ? "dim" : "hidden_size", is_electra ? 256 : 768))
          .intermediate_size(fields.integer(
              is_distil ? "hidden_dim" : "intermediate_size",
              is_electra ? 1024 : 3072))
          .max_positions(fields.integer("max_position_embeddings", 512))
          .norm_eps(is_distil ? 1e-12 : fields.number("layer_norm_eps", 1e-12))
          .activation(fields.activation(
              is_distil ? "activation" : "hidden_act", "gelu"));
  fields.check_size("vocab_size", words[0]);
  if (is_electra) {
    fields.check_size("embedding_size", words[1]);
  }
  if (type == "mpnet") {
    options.padding_token(1); // whatever the configuration says
  } else if (type != "bert" && !is_distil && !is_electra) {
    options.padding_token(fields.integer("pad_token_id", 1));
  }
  const auto types = prefix + "embeddings.token_type_embeddings.weight";
  if (is_distil || type == "mpnet") {
    return options.num_token_types(0);
  }
  options.num_token_types(weights.matrix_sizes(types)[0]);
  fields.check_size("type_vocab_size", options.num_token_types());
  return options;
}

/// Copies all but the attention, the bias, and layers that are left out.
void copy_weights(
    BertImpl& model,
    FolderWeights& weights,
    const std::string& prefix,
    const BertNames& names) {
  const auto copy = [&](const std::string& path, const auto& part) {
    weights.copy(prefix + path + ".weight", part->weight);
    weights.copy(prefix + path + ".bias", part->bias);
  };
  const auto copy_embedding = [&](const char* name, const auto& table) {
    weights.copy(format_text("{}embeddings.{}.weight", prefix, name), table);
  };
  copy_embedding("word_embeddings", model.word_embeddings);
  copy_embedding("position_embeddings", model.position_embeddings);
  if (model.token_type_embeddings.defined()) {
    copy_embedding("token_type_embeddings", model.token_type_embeddings);
  }
  // Numbers that older files have.
  weights.take_all(prefix + "embeddings.position_ids");
  weights.take_all(prefix + "embeddings.token_type_ids");
  copy("embeddings.LayerNorm", model.embedding_norm);
  if (!model.embedding_projection.is_empty()) {
    copy("embeddings_project", model.embedding_projection);
  }
  for (size_t i = 0; i < model.blocks->size(); ++i) {
    const auto& block = *model.blocks[i]->as<BertBlock>();
    const auto layer = format_text("{}.{}.", names.layer, i);
    copy(layer + names.attention_norm, block.attention_norm);
    copy(layer + names.up, block.up);
    copy(layer + names.down, block.down);
    copy(layer + names.output_norm, block.output_norm);
    // The norm may be among them.
    weights.take_all(prefix + layer + "attention.");
  }
}

} // namespace

Bert bert_from_pretrained(
    const std::string& folder,
    const PretrainedModelOptions& options) {
  const auto layers = text_layers_of(folder, options);
  const auto types = bert_types();
  const auto& type = layers.model_type;
  TORCH_ATTENTION_CHECK(
      std::binary_search(types.begin(), types.end(), type),
      "expected a model_type of {} in \"{}\", but got \"{}\"",
      list_text(types, ", "),
      folder,
      type);
  FolderWeights weights(folder);
  const auto prefix = weights.prefix_of("embeddings.word_embeddings.weight");
  const bool has_bias = type == "mpnet";
  const auto attention_options =
      PretrainedOptions().dtype(options.dtype()).bias_by_caller(has_bias);
  Bert model(
      bert_options_of(ModelFields(folder), type, weights, prefix),
      load_attention(folder, layers.count, attention_options),
      has_bias ? relative_bias_from_pretrained(folder, attention_options)
               : RelativeBias(nullptr),
      options.dtype());
  const auto& names = names_of(type);
  copy_weights(*model, weights, prefix, names);
  weights.take_all(prefix + "encoder.relative_attention_bias.");
  for (auto i = layers.count; i < layers.total; ++i) {
    weights.take_all(format_text("{}{}.{}.", prefix, names.layer, i));
  }
  for (const auto* part :
       {"embeddings.", "embeddings_project.", "encoder.", "transformer."}) {
    weights.check_all_taken(prefix + part);
  }
  model->eval();
  return model;
}

std::vector<std::string> bert_types() {
  return {
      "bert",
      "camembert",
      "distilbert",
      "electra",
      "mpnet",
      "roberta",
      "xlm-roberta"};
}

} // namespace torch_attention::models
