#include <harness/agreement.h>

#include <format_text.h>
#include <tools/comparison.h>

#include <ATen/ops/linalg_vector_norm.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

namespace torch_attention::benchmarks {

namespace {

/// Relative to the disturbance by dropout, an average over many tokens.
constexpr double kAllowedDisturbance = 0.05;

/// The results of a run.
struct Run {
  torch::Tensor output;
  std::vector<torch::Tensor> gradients;
};

Run run_once(const Candidate& candidate) {
  Run run;
  run.output = candidate.run().detach();
  for (auto& gradient : candidate.take_gradients()) {
    if (gradient.defined()) {
      run.gradients.push_back(std::move(gradient));
    }
  }
  return run;
}

void set_dropout(const Candidate& candidate, bool on) {
  if (candidate.set_dropout) {
    candidate.set_dropout(on);
  }
}

/// Returns the first tokens: (..., T, D) -> (..., n, D).
torch::Tensor first_tokens(const torch::Tensor& x, int64_t n) {
  return x.narrow(-2, 0, std::min(n, x.size(-2)));
}

double relative_difference(
    const torch::Tensor& theirs,
    const torch::Tensor& ours) {
  const auto scale = tools::largest_of(ours);
  // Uses `of_allowed`, with all of the scale allowed: NaN counts as infinite
  // there.
  return tools::compare(theirs, ours, scale, scale).of_allowed;
}

Agreement agreement_of(
    const Candidate& candidate,
    const Run& theirs,
    const Run& ours) {
  Agreement agreement;
  const auto tokens = candidate.compared_tokens.value_or(ours.output.size(-2));
  agreement.difference = relative_difference(
      first_tokens(theirs.output, tokens), first_tokens(ours.output, tokens));
  if (theirs.gradients.size() != ours.gradients.size()) {
    agreement.problem = format_text(
        "{} has {} gradients and ours {}",
        candidate.name,
        theirs.gradients.size(),
        ours.gradients.size());
    return agreement;
  }
  for (size_t i = 0; i < ours.gradients.size(); ++i) {
    agreement.difference = std::max(
        agreement.difference,
        relative_difference(theirs.gradients[i], ours.gradients[i]));
  }
  if (agreement.difference > candidate.allowed_difference) {
    agreement.problem = format_text(
        "{} differs from ours by {:.1e} of the largest element",
        candidate.name,
        agreement.difference);
  }
  return agreement;
}

/// Returns how much dropout changes the second half of the tokens, which see
/// many.
double disturbance_of(const Candidate& candidate, const Run& undisturbed) {
  const auto tokens = undisturbed.output.size(-2);
  const auto second_half = [&](const torch::Tensor& x) {
    return x.narrow(-2, tokens / 2, tokens - tokens / 2);
  };
  const auto exact = second_half(undisturbed.output);
  const auto disturbed = second_half(run_once(candidate).output);
  return (at::linalg_vector_norm(disturbed - exact) /
          at::linalg_vector_norm(exact))
      .item<double>();
}

} // namespace

std::vector<Agreement> compare_candidates(
    const std::vector<Candidate>& candidates) {
  std::vector<Agreement> agreements;
  Run ours;
  double our_disturbance = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const auto& candidate = candidates[i];
    set_dropout(candidate, false);
    const auto run = run_once(candidate);
    if (i == 0) {
      ours = run;
    }
    agreements.push_back(agreement_of(candidate, run, ours));
    set_dropout(candidate, true);
    if (!candidate.drops) {
      continue;
    }
    const auto disturbance = disturbance_of(candidate, run);
    if (i == 0) {
      our_disturbance = disturbance;
    }
    const auto ratio = disturbance / our_disturbance;
    // Also false for NaN from 0 / 0: dropout that drops nothing.
    if (!(std::abs(ratio - 1) <= kAllowedDisturbance)) {
      agreements.back().problem = format_text(
          "dropout changes the output of {} by {:.1e} and ours by {:.1e}",
          candidate.name,
          disturbance,
          our_disturbance);
    }
  }
  return agreements;
}

} // namespace torch_attention::benchmarks
