#pragma once

#include <torch_attention/export.h>

#include <iosfwd>
#include <string>
#include <vector>

namespace torch::jit {
struct Module;
} // namespace torch::jit

/// Functions that put our attention into TorchScript models.
namespace torch_attention {

/// The changes that `swap_attention` made to a TorchScript model.
struct TORCH_ATTENTION_API GraphSwapReport {
  /// A place in a model that computes attention.
  struct Place {
    /// path of the module, such as "forward: blocks.3.att"
    std::string where;
    /// what it was taken for, such as "causal attention with dropout"; or why
    /// it was left alone
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
/// A mask becomes `causal` only if its values are computed for several sizes
/// and found to be so; others stay masks. A query whose keys are all hidden
/// gets zeros, where Python gives NaN. The methods of `module` get the code of
/// the modules that they call; those modules keep theirs. Nothing changes if
/// nothing is found.
///
/// A model that is saved afterwards needs our library where it is loaded.
///
/// Example:
/// ```
/// auto model = torch::jit::load("model.pt");
/// std::cout << swap_attention(model);
/// ```
TORCH_ATTENTION_API GraphSwapReport swap_attention(torch::jit::Module& module);

} // namespace torch_attention
