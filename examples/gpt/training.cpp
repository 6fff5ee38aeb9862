#include "training.h"

#include "checkpoint.h"
#include "loss_curve.h"

#include <ATen/autocast_mode.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace gpt {

using torch::Tensor;
using torch::optim::AdamWOptions;
using torch_attention::models::Gpt2;
using torch_attention::models::Gpt2Impl;

namespace {

constexpr int64_t kValidationSequences = 64;

/// Lets LibTorch compute in bfloat16 while it lives, if `enabled`.
class Autocast {
 public:
  explicit Autocast(bool enabled) : enabled_(enabled) {
    if (enabled_) {
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, true);
    }
  }
  ~Autocast() {
    if (enabled_) {
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
    }
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool enabled_;
};

void check_options(const TrainingOptions& options) {
  const auto check_positive = [](const char* name, double value) {
    TORCH_CHECK(value > 0, "Expected ", name, " > 0 but got ", value);
  };
  check_positive("steps", static_cast<double>(options.steps));
  check_positive("batch_size", static_cast<double>(options.batch_size));
  check_positive("accumulate", static_cast<double>(options.accumulate));
  check_positive("lr", options.lr);
  check_positive("clip", options.clip);
  check_positive("save_every", static_cast<double>(options.save_every));
  TORCH_CHECK(
      options.warmup >= 0 && options.warmup < options.steps,
      "Expected warmup from 0 to ",
      options.steps - 1,
      " but got ",
      options.warmup);
  TORCH_CHECK(
      options.model.vocab_size() == 256,
      "Expected the vocab_size of bytes, 256, but got ",
      options.model.vocab_size());
}

/// The settings that a run that goes on must share with the one before.
std::vector<double> settings_of(
    const TrainingOptions& options,
    const TextData& text) {
  const auto& model = options.model;
  std::vector<double> settings = {
      options.lr,
      options.weight_decay,
      options.clip,
      model.drop_rate(),
      static_cast<double>(options.seed)};
  for (const auto value :
       {options.steps,
        options.batch_size,
        options.accumulate,
        options.warmup,
        static_cast<int64_t>(options.bfloat16),
        model.context_length(),
        model.emb_dim(),
        model.n_heads(),
        model.n_layers(),
        model.hidden_dim().value_or(0),
        static_cast<int64_t>(model.qkv_bias()),
        static_cast<int64_t>(model.tied()),
        text.size()}) {
    settings.push_back(static_cast<double>(value));
  }
  return settings;
}

/// Decays matrices, not biases and norms.
FusedAdamW make_optimizer(Gpt2Impl& model, const TrainingOptions& options) {
  std::vector<Tensor> matrices;
  std::vector<Tensor> vectors;
  for (const auto& parameter : model.parameters()) {
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  }
  auto adamw = AdamWOptions(options.lr).betas({0.9, 0.95});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(
      matrices,
      std::make_unique<AdamWOptions>(
          AdamWOptions(adamw).weight_decay(options.weight_decay)));
  groups.emplace_back(
      vectors,
      std::make_unique<AdamWOptions>(AdamWOptions(adamw).weight_decay(0)));
  return FusedAdamW(groups, adamw);
}

Tensor loss_of(Gpt2Impl& model, const TextData::Batch& batch, bool bfloat16) {
  const Autocast autocast(bfloat16);
  const auto logits = model.forward(batch.ids); // (B, T, V)
  return torch::cross_entropy_loss(
      logits.flatten(0, 1).to(torch::kFloat), batch.next.flatten());
}

/// Returns the batches whose gradients a step adds.
std::vector<TextData::Batch> batches_of_step(
    const TextData& text,
    const TrainingOptions& options,
    int64_t step) {
  std::vector<TextData::Batch> batches;
  for (int64_t i = 0; i < options.accumulate; ++i) {
    batches.push_back(text.training(
        (step * options.accumulate + i) * options.batch_size,
        options.batch_size));
  }
  return batches;
}

} // namespace

Trainer::Trainer(Gpt2 model_, const TrainingOptions& options)
    : model(std::move(model_)),
      optimizer(make_optimizer(*model, options)),
      clip_(options.clip),
      bfloat16_(options.bfloat16) {
  model->train();
}

double Trainer::take_step(
    double lr,
    const std::vector<TextData::Batch>& batches) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(lr);
  }
  optimizer.zero_grad();
  const auto count = static_cast<double>(batches.size());
  double sum = 0;
  for (const auto& batch : batches) {
    const auto loss = loss_of(*model, batch, bfloat16_);
    (loss / count).backward();
    sum += loss.item<double>();
  }
  torch::nn::utils::clip_grad_norm_(model->parameters(), clip_);
  optimizer.step();
  return sum / count;
}

double Trainer::validate(const TextData::Batch& batch) {
  const torch::NoGradGuard no_gradients;
  model->eval();
  const auto loss = loss_of(*model, batch, bfloat16_);
  model->train();
  return loss.item<double>();
}

double learning_rate(const TrainingOptions& options, int64_t step) {
  if (step < options.warmup) {
    return options.lr * static_cast<double>(step + 1) /
        static_cast<double>(options.warmup);
  }
  const auto share = static_cast<double>(step - options.warmup) /
      static_cast<double>(options.steps - options.warmup);
  return options.lr * (0.1 + 0.45 * (1 + std::cos(M_PI * share)));
}

std::vector<double> train(
    const TrainingOptions& options,
    const std::function<void(const TrainingProgress&)>& on_step) {
  check_options(options);
  const TextData text(
      options.text, options.model.context_length(), options.seed);
  torch::manual_seed(options.seed);
  Trainer trainer(Gpt2(options.model), options);
  const auto settings = settings_of(options, text);
  const auto checkpoint = options.folder + "/checkpoint.pt";
  std::vector<double> losses;
  if (options.resume) {
    losses = load_checkpoint(
        checkpoint, *trainer.model, trainer.optimizer, settings);
  }
  const auto first = static_cast<int64_t>(losses.size());
  const auto last =
      std::min(options.stop_after.value_or(options.steps), options.steps);
  const auto tokens_per_step =
      options.accumulate * options.batch_size * options.model.context_length();
  const auto start = std::chrono::steady_clock::now();
  for (auto step = first; step < last; ++step) {
    TrainingProgress progress;
    progress.loss = trainer.take_step(
        learning_rate(options, step), batches_of_step(text, options, step));
    TORCH_CHECK(
        std::isfinite(progress.loss),
        "The loss of step ",
        step + 1,
        " is not finite");
    losses.push_back(progress.loss);
    progress.step = step + 1;
    const auto seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    const auto done = static_cast<double>(progress.step - first);
    progress.tokens_per_second =
        done * static_cast<double>(tokens_per_step) / seconds;
    progress.seconds_left =
        seconds / done * static_cast<double>(last - progress.step);
    if (progress.step % options.save_every == 0 || progress.step == last) {
      progress.validation_loss =
          trainer.validate(text.validation(kValidationSequences));
      save_checkpoint(
          checkpoint, *trainer.model, trainer.optimizer, losses, settings);
      torch_attention::models::save_gpt2(
          *trainer.model, options.folder, {{"tokens", "bytes"}});
      write_losses(options.folder + "/losses.csv", losses);
      draw_losses(options.folder + "/losses.svg", losses);
    }
    on_step(progress);
  }
  return losses;
}

} // namespace gpt
