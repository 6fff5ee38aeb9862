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

/// Functions that put our attention into TorchScript models.
namespace torch_attention {

/// Options for `swap_attention` of a TorchScript model.
struct TORCH_ATTENTION_API SwapOptions {
  /// Arguments of `forward`. With them the model runs before and after, on
  /// copies, and a place whose swap changes its outputs is left alone. The
  /// outputs must repeat: call `eval()` on a model that drops weights.
  /// Default: none, nothing runs
  TORCH_ARG(std::optional<std::vector<c10::IValue>>, example) = std::nullopt;
};

/// The changes that `swap_attention` made to a TorchScript model.
struct TORCH_ATTENTION_API GraphSwapReport {
  /// A place in a model that computes attention.
  struct Place {
    /// path of the module, such as "forward: blocks.3.att"
    std::string where;
    /// what it was taken for, such as "attention with a mask and dropout"; or
    /// why it was left alone
    std::string what;
  };

  /// computed by our operator from now on.
  std::vector<Place> swapped;

  /// unchanged, though they look like attention.
  std::vector<Place> left_alone;
};

/// Prints a line for each place.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    const GraphSwapReport& report);

/// Finds attention in a TorchScript model, traced or scripted, frozen or not,
/// and lets our operator `torch_attention::attention` compute it: products of
/// queries and keys that are scaled, masked, and multiplied with the values
/// after a softmax and a dropout, and LibTorch's own operators of attention.
/// Weights are shared with the model as it was, so that optimizers go on.
///
/// Masks are those that the model computes, whatever they hide. Shapes, dtypes
/// and finite fills are checked at each call: where our operator would give
/// other numbers, the old operators compute. A query whose keys are all hidden
/// by -inf gets zeros, where Python gives NaN. The methods of `module` get the
/// code of the modules that they call; those modules keep theirs. Nothing
/// changes if nothing is found, or if the new code cannot be saved and loaded.
///
/// A model that is saved afterwards needs our library where it is loaded.
///
/// Throws c10::Error if the model does not run with the example, or gives other
/// outputs each time.
///
/// Example:
/// ```
/// auto model = torch::jit::load("model.pt");
/// std::cout << swap_attention(model, SwapOptions().example({{x}}));
/// ```
TORCH_ATTENTION_API GraphSwapReport
swap_attention(torch::jit::Module& module, const SwapOptions& options = {});

} // namespace torch_attention
