#pragma once

#include "fused_adamw.h"
#include "text_data.h"

#include <torch_attention/models/gpt2.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gpt {

/// How a GPT-2 is trained on the bytes of a text.
struct TrainingOptions {
  std::string text;
  /// Gets `checkpoint.pt`, `losses.csv`, `losses.svg`, and the model as
  /// `save_pretrained` writes it.
  std::string folder;
  /// Sizes; `vocab_size` is 256.
  torch_attention::models::Gpt2Options model;

  /// Default: as of the checkpoint that the run goes on from, or else 1000
  std::optional<int64_t> steps;
  /// Sequences of a batch, of which a step adds the gradients of `accumulate`.
  int64_t batch_size = 16;
  int64_t accumulate = 1;
  /// AdamW (Loshchilov and Hutter 2019). The rate rises for `warmup` steps and
  /// then falls to a tenth along a cosine.
  double lr = 3e-3;
  /// Default: as of the checkpoint, or else a tenth of the steps, at most 100
  std::optional<int64_t> warmup;
  /// For matrices; not for biases and norms.
  double weight_decay = 0.1;
  /// The largest norm of all gradients.
  double clip = 1;
  /// Compute in bfloat16 where LibTorch's autocast does; weights stay float32.
  bool bfloat16 = false;
  uint64_t seed = 1;
  /// Checkpoints are written after so many steps, and after the last.
  int64_t save_every = 200;
  /// Go on from the checkpoint of the folder.
  bool resume = false;
  /// End after this step as if interrupted, with a checkpoint. Default: steps
  std::optional<int64_t> stop_after;
  /// Is called after each step; true ends the run with a checkpoint.
  std::function<bool()> is_interrupted = [] { return false; };
};

/// The report of `train` after each step.
struct TrainingProgress {
  /// Counts from 1.
  int64_t step = 0;
  int64_t steps = 0;
  double loss = 0;
  double tokens_per_second = 0;
  double seconds_left = 0;
  /// After checkpoints.
  std::optional<double> validation_loss;
};

/// A model and its optimizer.
class Trainer {
 public:
  /// Takes `weight_decay`, `clip` and `bfloat16` of the options.
  Trainer(torch_attention::models::Gpt2 model, const TrainingOptions& options);

  /// One step of the optimizer with the gradients of all batches; returns their
  /// mean loss.
  double take_step(double lr, const std::vector<TextData::Batch>& batches);

  /// Returns the loss of a batch, in evaluation and without gradients.
  double validate(const TextData::Batch& batch);

  torch_attention::models::Gpt2 model;
  FusedAdamW optimizer;

 private:
  double clip_;
  bool bfloat16_;
};

/// Trains a model from scratch, or goes on from a checkpoint with what would
/// have been computed without the interruption, bit for bit; with other `steps`
/// or `warmup` from here on by another learning rate. Returns the losses of all
/// steps.
///
/// Throws c10::Error if the text or the checkpoint cannot be read, the
/// checkpoint is of other options or has more steps, or the loss is not finite.
///
/// Example:
/// ```
/// TrainingOptions options;
/// options.text = "text.txt";
/// options.folder = "trained"; // exists
/// train(options, [](const TrainingProgress&) {});
/// ```
std::vector<double> train(
    const TrainingOptions& options,
    const std::function<void(const TrainingProgress&)>& on_step);

} // namespace gpt
