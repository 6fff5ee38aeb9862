#pragma once

#include <tools/module_config.h>
#include <tools/training_run.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace torch_attention::tools {

/// A TorchScript archive, and the results that a module with its weights must
/// give.
struct VerificationCase {
  std::string name;
  std::string archive;
  /// Dotted path of the module inside the archive.
  std::string prefix;
  ModuleConfig config;
  TrainingRun run;
  StateDict expected;
  /// A sample of the random stream with which recorded results were drawn, as
  /// `random_draws` gives it; undefined where there is none.
  torch::Tensor draws;
  /// By name, how far rounding takes the archive's own results from those in
  /// double. Empty if it has no code, no code that runs in double, or dropout.
  std::map<std::string, double> rounding;
  /// True if `config` and `expected` come from a file, not from the archive.
  bool is_recorded = false;

  /// Returns whether the run draws random numbers.
  bool has_dropout() const {
    return run.training && config.dropout > 0;
  }
};

/// Returns the elements, of 32, that dropout keeps under a seed. Versions of
/// LibTorch that differ in this have different random streams.
torch::Tensor random_draws();

/// Returns whether the results were drawn with another random stream than this
/// LibTorch's, so that no kernel can give them.
bool has_other_random_stream(const VerificationCase& verification_case);

/// The options for verifying an archive without recorded results.
struct ArchiveOptions {
  std::string prefix;
  std::optional<int64_t> num_heads;
  /// True if the module hides no keys: causal(false).
  bool unmasked = false;
  /// Tokens of the random input: the smaller of this and context_length.
  int64_t tokens = 16;
};

/// Returns the file of recorded results that belongs to an archive:
/// "a.expected.pt" for "a.pt".
std::string recorded_path(const std::string& archive);

/// Returns the case of an archive. If a file of recorded results, as
/// scripts/export_weights.py writes it, lies beside the archive, its results
/// are the expected ones; otherwise the archive's own code is run on random
/// input.
VerificationCase make_case(
    const std::string& archive,
    const ArchiveOptions& options);

/// Runs our module with the case's weights, all in the dtype of the run's
/// input.
StateDict run_ours(
    const VerificationCase& verification_case,
    const TrainingRun& training_run,
    torch::Device device,
    Kernel kernel);

} // namespace torch_attention::tools
