#pragma once

#include <tools/module_config.h>
#include <tools/training_run.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace torch_attention::tools {

/// A file of weights, and the results that a module with these weights must
/// give.
struct VerificationCase {
  std::string name;
  std::string archive;
  /// Dotted path of the module inside the archive.
  std::string prefix;
  ModuleConfig config;
  TrainingRun run;
  StateDict expected;
  /// A sample of the random stream that recorded results were drawn from, as
  /// `random_draws` returns it; undefined if there is none.
  torch::Tensor draws;
  /// By name, how far rounding takes the archive's own results from its results
  /// in float64. Empty without code that runs in float64, and with dropout.
  std::map<std::string, double> rounding;
  /// Whether `config` and `expected` come from a file of recorded results.
  bool is_recorded = false;

  /// Returns whether the run draws random numbers.
  bool has_dropout() const {
    return run.training && config.dropout > 0;
  }
};

/// Returns which of 32 elements dropout keeps under a fixed seed. Versions of
/// LibTorch that differ in this have different random streams.
torch::Tensor random_draws();

/// Returns whether the results were drawn from another random stream than this
/// LibTorch's, so that no kernel can reproduce them.
bool has_other_random_stream(const VerificationCase& verification_case);

/// The options for verifying an archive without recorded results.
struct ArchiveOptions {
  std::string prefix;
  std::optional<int64_t> num_heads;
  /// Whether the module hides no keys: causal(false).
  bool unmasked = false;
  /// The number of tokens of the random input, at most context_length.
  int64_t tokens = 16;
};

/// Returns the path of the recorded results of an archive: "a.expected.pt" for
/// "a.pt".
std::string recorded_path(const std::string& archive);

/// Makes the case of an archive. The expected results come from a file of
/// recorded results next to it, which scripts/export_weights.py writes, or else
/// from running the archive's own code on random input.
VerificationCase make_case(
    const std::string& archive,
    const ArchiveOptions& options);

/// Runs our module with the case's weights, in the dtype of the run's input.
StateDict run_ours(
    const VerificationCase& verification_case,
    const TrainingRun& training_run,
    torch::Device device,
    Kernel kernel);

} // namespace torch_attention::tools
