#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

namespace torch_attention::graphs {

/// Returns what `forward` of a copy of the module gives for copies of the
/// inputs.
c10::IValue run_copy(
    const torch::jit::Module& module,
    const std::vector<c10::IValue>& inputs);

/// Returns how `actual` differs from `expected` by more than the rounding of
/// its dtypes, such as "by 0.3"; empty if it does not.
std::string difference_of(
    const c10::IValue& actual,
    const c10::IValue& expected);

/// Saves a module without the numbers of its weights, and loads it. Returns why
/// its code cannot be read again; empty if it can.
std::string obstacle_to_saving(const torch::jit::Module& module);

} // namespace torch_attention::graphs
