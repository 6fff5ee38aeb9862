#pragma once

#include <tools/bench/candidates.h>
#include <tools/bench/roof.h>
#include <tools/bench/work.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// The ways in which LibTorch records operations.
enum class Recording {
  /// `torch::NoGradGuard`.
  kNone,
  /// `c10::InferenceMode`.
  kInference,
  /// Autograd's graph, also where no backward pass follows.
  kGraph,
};

/// Returns "no_grad", "inference_mode" or "autograd".
std::string recording_name(Recording recording);

/// One line of the table: a work and the candidates that do it.
struct Case {
  std::string name;
  Work work;
  Recording recording = Recording::kNone;
  Bound bound = Bound::kProducts;
  /// True if `--quick` runs it.
  bool is_quick = true;
  /// True if only `--series` runs it.
  bool is_series = false;
  /// Useful FLOPs or bytes, by `bound`, where `work` does not say them.
  std::optional<double> own_amount;
  /// Makes the candidates when it is the case's turn; ours comes first. `quick`
  /// leaves out those that only show how slow plain attention is.
  std::function<std::vector<Candidate>(bool quick)> make_candidates;

  /// Returns useful FLOPs or bytes, by `bound`.
  double amount() const;
};

/// Returns a case that a quick run leaves out, of so many useful FLOPs or
/// bytes, by `bound`. `make` draws from a generator that was seeded.
Case drawn_case(
    const std::string& name,
    const Work& work,
    Bound bound,
    double amount,
    std::function<std::vector<Candidate>()> make);

/// Returns all cases in the table's order.
std::vector<Case> all_cases();

} // namespace torch_attention::tools
