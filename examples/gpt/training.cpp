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
  check_positive("batch_size", static_cast<double>(options.batch_size));
  check_positive("accumulate", static_cast<double>(options.accumulate));
  check_positive("lr", options.lr);
  check_positive("clip", options.clip);
  check_positive("save_every", static_cast<double>(options.save_every));
  TORCH_CHECK(
      options.model.vocab_size() == 256,
      "Expected the vocab_size of bytes, 256, but got ",
      options.model.vocab_size());
}

/// Returns the settings that a run that goes on must share with the one before,
/// by the names that they have in the program.
Settings settings_of(const TrainingOptions& options, const TextData& text) {
  const auto& model = options.model;
  const auto number = [](auto value) { return static_cast<double>(value); };
  return {
      {"checksum of TEXT", number(text.checksum())},
      {"--context", number(model.context_length())},
      {"--width", number(model.emb_dim())},
      {"--heads", number(model.n_heads())},
      {"--layers", number(model.n_layers())},
      {"--dropout", model.drop_rate()},
      {"hidden_dim", number(model.hidden_dim().value_or(0))},
      {"qkv_bias", number(model.qkv_bias())},
      {"tied", number(model.tied())},
      {"--batch", number(options.batch_size)},
      {"--accumulate", number(options.accumulate)},
      {"--lr", options.lr},
      {"--weight-decay", options.weight_decay},
      {"--clip", options.clip},
      {"--bfloat16", number(options.bfloat16)},
      {"--seed", number(options.seed)}};
}

/// How long a run is, and how long its learning rate rises.
struct Schedule {
  int64_t steps = 0;
  int64_t warmup = 0;
};

const char* const kSteps = "--steps";
const char* const kWarmup = "--warmup";

/// Returns what the options say, else what the checkpoint, if there is one, was
/// made with.
Schedule schedule_of(
    const TrainingOptions& options,
    const std::optional<Checkpoint>& checkpoint) {
  const auto choose = [&](const std::optional<int64_t>& given,
                          const char* name,
                          int64_t otherwise) {
    return given     ? *given
        : checkpoint ? static_cast<int64_t>(checkpoint->setting(name))
                     : otherwise;
  };
  Schedule schedule;
  schedule.steps = choose(options.steps, kSteps, 1000);
  TORCH_CHECK(
      schedule.steps > 0, "Expected steps > 0 but got ", schedule.steps);
  schedule.warmup = choose(
      options.warmup, kWarmup, std::min<int64_t>(100, schedule.steps / 10));
  TORCH_CHECK(
      schedule.warmup >= 0 && schedule.warmup < schedule.steps,
      "Expected warmup from 0 to ",
      schedule.steps - 1,
      " but got ",
      schedule.warmup);
  const auto done =
      checkpoint ? static_cast<int64_t>(checkpoint->losses.size()) : 0;
  TORCH_CHECK(
      schedule.steps >= done,
      checkpoint ? checkpoint->path : "",
      ": expected --steps of at least ",
      done,
      ", which are done, but got ",
      schedule.steps);
  return schedule;
}

/// Returns the learning rate of a step, counted from 0.
double learning_rate(double lr, const Schedule& schedule, int64_t step) {
  if (step < schedule.warmup) {
    return lr * static_cast<double>(step + 1) /
        static_cast<double>(schedule.warmup);
  }
  const auto share = static_cast<double>(step - schedule.warmup) /
      static_cast<double>(schedule.steps - schedule.warmup);
  return lr * (0.1 + 0.45 * (1 + std::cos(M_PI * share)));
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

std::string checkpoint_of(const TrainingOptions& options) {
  return options.folder + "/checkpoint.pt";
}

/// Writes the files of the folder.
void save(
    const TrainingOptions& options,
    Trainer& trainer,
    const std::vector<double>& losses,
    const Settings& settings) {
  save_checkpoint(
      checkpoint_of(options),
      *trainer.model,
      trainer.optimizer,
      losses,
      settings);
  torch_attention::models::save_gpt2(
      *trainer.model, options.folder, {{"tokens", "bytes"}});
  write_losses(options.folder + "/losses.csv", losses);
  draw_losses(options.folder + "/losses.svg", losses);
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

std::vector<double> train(
    const TrainingOptions& options,
    const std::function<void(const TrainingProgress&)>& on_step) {
  check_options(options);
  const TextData text(
      options.text, options.model.context_length(), options.seed);
  torch::manual_seed(options.seed);
  Trainer trainer(Gpt2(options.model), options);
  auto settings = settings_of(options, text);
  std::optional<Checkpoint> checkpoint;
  std::vector<double> losses;
  if (options.resume) {
    checkpoint = read_checkpoint(checkpoint_of(options));
    check_settings(*checkpoint, settings);
    restore(*checkpoint, *trainer.model, trainer.optimizer);
    losses = checkpoint->losses;
  }
  const auto schedule = schedule_of(options, checkpoint);
  settings.emplace_back(kSteps, static_cast<double>(schedule.steps));
  settings.emplace_back(kWarmup, static_cast<double>(schedule.warmup));
  const auto first = static_cast<int64_t>(losses.size());
  const auto last =
      std::min(options.stop_after.value_or(schedule.steps), schedule.steps);
  const auto tokens_per_step =
      options.accumulate * options.batch_size * options.model.context_length();
  const auto start = std::chrono::steady_clock::now();
  bool is_interrupted = false;
  for (auto step = first; step < last && !is_interrupted; ++step) {
    TrainingProgress progress;
    progress.steps = schedule.steps;
    progress.loss = trainer.take_step(
        learning_rate(options.lr, schedule, step),
        batches_of_step(text, options, step));
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
    is_interrupted = options.is_interrupted();
    if (progress.step % options.save_every == 0 || progress.step == last ||
        is_interrupted) {
      progress.validation_loss =
          trainer.validate(text.validation(kValidationSequences));
      save(options, trainer, losses, settings);
    }
    on_step(progress);
  }
  return losses;
}

} // namespace gpt
