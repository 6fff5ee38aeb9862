#pragma once

#include <tools/bench/candidates.h>
#include <tools/bench/roof.h>
#include <tools/bench/work.h>

#include <functional>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// How LibTorch records what runs.
enum class Recording {
  /// `torch::NoGradGuard`.
  kNone,
  /// `c10::InferenceMode`.
  kInference,
  /// Autograd's graph, also where no backward pass follows.
  kGraph,
};

/// "no_grad", "inference_mode" or "autograd".
std::string recording_name(Recording recording);

/// One line of the table: a work, and those that do it.
struct Case {
  std::string name;
  Work work;
  Recording recording = Recording::kNone;
  Bound bound = Bound::kProducts;
  /// Whether `--quick` takes it.
  bool is_quick = true;
  /// Whether only `--series` takes it.
  bool is_series = false;
  /// Makes the candidates when it is the case's turn; ours comes first. `quick`
  /// leaves out those that only show how slow plain attention is.
  std::function<std::vector<Candidate>(bool quick)> make_candidates;

  /// Useful FLOPs or bytes, by `bound`.
  double amount() const;
};

/// All of them, in the table's order.
std::vector<Case> all_cases();

} // namespace torch_attention::tools
