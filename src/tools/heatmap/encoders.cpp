// Encoders of BERT's kind.

#include <tools/heatmap/model.h>
#include <tools/heatmap/model_weights.h>

#include <format_text.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>

namespace torch_attention::tools {

namespace {

/// Names in a layer.
struct EncoderNames {
  const char* layer;
  const char* norm_of_attention;
  const char* up;
  const char* down;
  const char* norm_of_network;
};

constexpr EncoderNames kBert{
    "encoder.layer.{}.",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm"};
constexpr EncoderNames kDistilBert{
    "transformer.layer.{}.",
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm"};

/// RoBERTa counts positions from the padding token's number on, which padding
/// keeps.
torch::Tensor roberta_positions(const torch::Tensor& ids, int64_t padding) {
  const auto is_token = ids.ne(padding).to(torch::kLong);
  return is_token.cumsum(0) * is_token + padding;
}

torch::Tensor embed(ModelRun& run, const ModelWeights& weights, double eps) {
  const auto& config = run.config;
  const bool counts_from_padding = run.model_type == "roberta" ||
      run.model_type == "camembert" || run.model_type == "xlm-roberta";
  const auto positions = counts_from_padding
      ? roberta_positions(run.ids, config.integer("pad_token_id").value_or(1))
      : at::arange(run.ids.size(0));
  auto x = weights.rows("embeddings.word_embeddings.weight", run.ids) +
      weights.rows("embeddings.position_embeddings.weight", positions);
  const std::string types = "embeddings.token_type_embeddings.weight";
  if (weights.contains(types)) {
    x = x + weights.rows(types, at::zeros_like(run.ids));
  }
  x = weights.layer_norm("embeddings.LayerNorm", x, eps);
  const std::string projection = "embeddings_project";
  return weights.contains(projection + ".weight")
      ? weights.linear(projection, x)
      : x;
}

} // namespace

void run_bert_like(ModelRun& run) {
  const auto& config = run.config;
  const bool is_distil = run.model_type == "distilbert";
  const auto& names = is_distil ? kDistilBert : kBert;
  const auto eps =
      is_distil ? 1e-12 : config.number("layer_norm_eps").value_or(1e-12);
  const auto activation =
      config.text(is_distil ? "activation" : "hidden_act").value_or("gelu");
  const ModelWeights weights(run.folder, "embeddings.word_embeddings.weight");

  auto x = embed(run, weights, eps);
  for (int64_t layer = 0;; ++layer) {
    const auto attended = run.attend(layer, x);
    if (layer == run.last) {
      return;
    }
    const auto path =
        format_arguments(names.layer, fmt::make_format_args(layer));
    const auto y =
        weights.layer_norm(path + names.norm_of_attention, x + attended, eps);
    const auto hidden =
        activate(activation, weights.linear(path + names.up, y));
    x = weights.layer_norm(
        path + names.norm_of_network,
        y + weights.linear(path + names.down, hidden),
        eps);
  }
}

} // namespace torch_attention::tools
