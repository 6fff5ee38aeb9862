#pragma once

#include <torch/optim/adamw.h>

namespace gpt {

/// AdamW that reads and writes the parameters of a group once in a step, by the
/// operator of Python's `AdamW(fused=True)`. Options, state and files are those
/// of torch::optim::AdamW; `amsgrad` is not supported.
class FusedAdamW : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;

  /// Updates the parameters that have gradients. Returns the loss of
  /// `closure`, if there is one.
  torch::Tensor step(LossClosure closure = nullptr) override;
};

} // namespace gpt
