// Decoders of GPT-2's and Llama's kind.

#include <tools/heatmap/model.h>
#include <tools/heatmap/model_weights.h>

#include <format_text.h>

#include <c10/util/Exception.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/rsqrt.h>

#include <cmath>

namespace torch_attention::tools {

namespace {

/// The differences of models of Llama's kind, beside attention.
struct LlamaKind {
  double eps;
  std::string activation;
  /// Gemma: embeddings times sqrt(C), norms times 1 + weight.
  bool is_gemma;
  /// Gemma 2 and 3: norms after each part, too.
  bool has_norms_after;
};

LlamaKind kind_of(ModelRun& run) {
  const auto& config = run.config;
  const bool is_gemma = run.model_type.rfind("gemma", 0) == 0;
  // Gemma was trained with the tangent, which its first files call "gelu".
  const auto activation = is_gemma
      ? config.text("hidden_activation").value_or("gelu_pytorch_tanh")
      : config.text("hidden_act").value_or("silu");
  return {
      config.number("rms_norm_eps").value_or(1e-6),
      activation,
      is_gemma,
      is_gemma && run.model_type != "gemma"};
}

/// The steps of a block of Llama's kind.
class LlamaSteps {
 public:
  explicit LlamaSteps(ModelRun& run)
      : kind_(kind_of(run)), weights_(run.folder, "embed_tokens.weight") {}

  torch::Tensor embed(const torch::Tensor& ids) const {
    const auto x = weights_.rows("embed_tokens.weight", ids);
    return kind_.is_gemma ? x * std::sqrt(static_cast<double>(x.size(-1))) : x;
  }

  torch::Tensor norm(const std::string& name, const torch::Tensor& x) const {
    const auto weight = weights_.get(name + ".weight");
    const auto normed =
        x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + kind_.eps);
    return normed * (kind_.is_gemma ? weight + 1 : weight);
  }

  /// x after the attention gave `attended` for it.
  torch::Tensor add(
      const std::string& path,
      const torch::Tensor& x,
      const torch::Tensor& attended) const {
    const auto after_attention = path + "post_attention_layernorm";
    if (!kind_.has_norms_after) {
      const auto y = x + attended;
      return y + network(path, norm(after_attention, y));
    }
    const auto y = x + norm(after_attention, attended);
    const auto hidden =
        network(path, norm(path + "pre_feedforward_layernorm", y));
    return y + norm(path + "post_feedforward_layernorm", hidden);
  }

 private:
  torch::Tensor network(const std::string& path, const torch::Tensor& x) const {
    const auto gate = weights_.linear(path + "mlp.gate_proj", x);
    return weights_.linear(
        path + "mlp.down_proj",
        activate(kind_.activation, gate) *
            weights_.linear(path + "mlp.up_proj", x));
  }

  LlamaKind kind_;
  ModelWeights weights_;
};

} // namespace

void run_gpt2(ModelRun& run) {
  const auto& config = run.config;
  TORCH_CHECK(
      !config.flag("add_cross_attention").value_or(false),
      format_text(
          "\"{}\" has attention to another model's output, which is not run",
          config.path()));
  const auto eps = config.number("layer_norm_epsilon").value_or(1e-5);
  const auto activation =
      config.text("activation_function").value_or("gelu_new");
  const ModelWeights weights(run.folder, "wte.weight");

  auto x = weights.rows("wte.weight", run.ids) +
      weights.rows("wpe.weight", at::arange(run.ids.size(0)));
  for (int64_t layer = 0;; ++layer) {
    const auto path = format_text("h.{}.", layer);
    const auto attended =
        run.attend(layer, weights.layer_norm(path + "ln_1", x, eps));
    if (layer == run.last) {
      return;
    }
    x = x + attended;
    const auto hidden = activate(
        activation,
        weights.transposed_linear(
            path + "mlp.c_fc", weights.layer_norm(path + "ln_2", x, eps)));
    x = x + weights.transposed_linear(path + "mlp.c_proj", hidden);
  }
}

void run_llama_like(ModelRun& run) {
  const LlamaSteps steps(run);
  auto x = steps.embed(run.ids);
  for (int64_t layer = 0;; ++layer) {
    const auto path = format_text("layers.{}.", layer);
    const auto attended =
        run.attend(layer, steps.norm(path + "input_layernorm", x));
    if (layer == run.last) {
      return;
    }
    x = steps.add(path, x, attended);
  }
}

} // namespace torch_attention::tools
