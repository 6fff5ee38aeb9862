#pragma once

#include <torch_attention/export.h>

#include <ATen/core/ivalue.h>
#include <torch/arg.h>

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace torch::jit {
struct Module;
} // namespace torch::jit

/// Functions that replace attention in TorchScript models by ours.
namespace torch_attention {

/// Options for `swap_attention` of a TorchScript model.
struct TORCH_ATTENTION_API SwapOptions {
  /// arguments of `forward`. With them the model runs before and after, on
  /// copies, and attention whose replacement changes the outputs is left alone.
  /// The outputs have to be reproducible: call `eval()` on a model with
  /// dropout. Default: none, the model is not run
  TORCH_ARG(std::optional<std::vector<c10::IValue>>, example) = std::nullopt;
};

/// The changes that `swap_attention` made to a TorchScript model.
struct TORCH_ATTENTION_API GraphSwapReport {
  /// Code in a model that computes attention.
  struct Place {
    /// path of the module, such as "forward: blocks.3.att"
    std::string where;
    /// what was recognised, such as "attention with a mask and dropout", or why
    /// it was left alone
    std::string what;
  };

  /// attention that our operator computes from now on.
  std::vector<Place> swapped;

  /// code that looks like attention and is unchanged.
  std::vector<Place> left_alone;
};

/// Prints a line for each `Place`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    const GraphSwapReport& report);

/// Finds attention in a TorchScript model, traced or scripted, frozen or not,
/// and lets our operator `torch_attention::attention` compute it: products of
/// queries and keys that are scaled, masked, and multiplied with the values
/// after a softmax and a dropout, and calls of LibTorch's attention operators.
/// The model keeps its parameters, so optimizers stay valid.
///
/// Masks are computed by the model and may hide any keys. Shapes, dtypes and
/// finite fill values are checked in each call: where our operator would return
/// other numbers, the original operators run. A query whose keys are all hidden
/// by -inf gets zeros, where Python gives NaN. The submodules' code is inlined
/// into the methods of `module`; the submodules' own methods do not change.
/// Nothing changes if no attention is found, or if the new code cannot be saved
/// and loaded.
///
/// A model that is saved afterwards needs this library where it is loaded.
///
/// Throws c10::Error if the model does not run with the example, or if its
/// outputs are not reproducible.
///
/// Example:
/// ```
/// auto model = torch::jit::load("model.pt");
/// std::cout << swap_attention(model, SwapOptions().example({{x}}));
/// ```
TORCH_ATTENTION_API GraphSwapReport
swap_attention(torch::jit::Module& module, const SwapOptions& options = {});

} // namespace torch_attention
