#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/types.h>

namespace torch_attention::graphs {

/// The meaning of a mask's numbers.
enum class MaskMeaning {
  /// bool, true hides
  kHides,
  /// bool, true attends; or numbers that are added
  kOfLibTorch,
};

/// Returns whether a mask of scores is known to hide just what comes after a
/// query's position, where the queries are the last: it follows from constants,
/// buffers of `module` and sizes alone, and does so for several sizes.
bool is_causal_mask(
    const torch::jit::Module& module,
    torch::jit::Value* mask,
    MaskMeaning meaning);

/// Returns what a value stands for if it is an attribute of `module`, or one of
/// its attributes, and so on.
std::optional<c10::IValue> attribute_behind(
    const torch::jit::Module& module,
    const torch::jit::Value* value);

/// Returns the tensor that a value stands for, a constant or an attribute of
/// `module`; undefined if it is neither.
torch::Tensor tensor_behind(
    const torch::jit::Module& module,
    const torch::jit::Value* value);

} // namespace torch_attention::graphs
