#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

namespace torch_attention::graphs {

/// Runs `forward` of a copy of the module on copies of the inputs.
c10::IValue run_copy(
    const torch::jit::Module& module,
    const std::vector<c10::IValue>& inputs);

/// Returns how `actual` differs from `expected` by more than the rounding error
/// of its dtypes, such as "by 0.3"; empty if it does not.
std::string difference_of(
    const c10::IValue& actual,
    const c10::IValue& expected);

/// Saves a module on the meta device, so without the values of its weights, and
/// loads it. Returns why the code cannot be loaded; empty if it can.
std::string obstacle_to_saving(const torch::jit::Module& module);

} // namespace torch_attention::graphs
