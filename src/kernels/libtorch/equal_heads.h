#pragma once

#include <torch/types.h>

#include <ATen/ops/stack.h>

#include <cstdint>
#include <vector>

/// Grouped heads for kernels that want as many key heads as query heads.
namespace torch_attention::kernels {

/// Operands of attention, each of the last three of which may be undefined.
struct Operands {
  /// (B, H, T, D)
  torch::Tensor query;
  /// (B, G, S, D), where H is a multiple of G
  torch::Tensor key;
  /// (B, G, S, Dv)
  torch::Tensor value;
  /// Mask or bias, broadcasts to (B, H, T, S)
  torch::Tensor scores;
  /// Broadcast to (B, H, T)
  torch::Tensor sinks;
  torch::Tensor no_key;
};

/// What the heads of a group may become for a kernel: not for one that gets
/// queries or sequences of its own numbers.
struct GroupsAs {
  bool queries = true;
  bool sequences = true;
};

/// Returns the output (B, H, T, Dv) of `attend`, which gets Operands with equal
/// heads and returns their output. Copies no keys: with a single query the
/// heads of a group become its queries; with a single sequence they become
/// sequences; else `attend` is called for the first heads of all groups, then
/// for the second ones, and so on. A mask that depends on positions is right
/// for the first kind only if it shows all keys.
///
/// Keys are never expanded along the heads: LibTorch's memory-efficient kernel
/// takes those of stride 0 for the heads of a single query and, before 2.15,
/// reads wrong rows for others.
template <typename Attend>
torch::Tensor with_equal_heads(
    const Operands& x,
    GroupsAs may_become,
    const Attend& attend) {
  const auto B = x.query.size(0);
  const auto H = x.query.size(1);
  const auto T = x.query.size(2);
  const auto G = x.key.size(1);
  const auto R = H / G;
  if (H == G) {
    return attend(x);
  }
  // Returns `x` with what `change` returns for (b, H, t, ...). What is the same
  // for all heads stays.
  const auto changed = [&](const auto& change) {
    auto operands = x;
    for (auto* rows :
         {&operands.query,
          &operands.scores,
          &operands.sinks,
          &operands.no_key}) {
      if (rows->defined() && rows->size(1) == H) {
        *rows = change(*rows);
      }
    }
    return operands;
  };
  if (T == 1 && may_become.queries) {
    const auto operands = changed([&](const torch::Tensor& rows) {
      // (b, H, 1, ...) -> (b, G, R, ...)
      return rows.squeeze(2).unflatten(1, {G, R});
    });
    return attend(operands).flatten(1, 2).unsqueeze(2);
  }
  if (B == 1 && may_become.sequences) {
    auto operands = changed([&](const torch::Tensor& rows) {
      // (1, H, t, ...) -> (R, G, t, ...)
      return rows.squeeze(0).unflatten(0, {G, R}).transpose(0, 1);
    });
    operands.key = x.key.expand({R, -1, -1, -1});
    operands.value = x.value.expand({R, -1, -1, -1});
    return attend(operands).transpose(0, 1).flatten(0, 1).unsqueeze(0);
  }
  std::vector<torch::Tensor> outputs;
  outputs.reserve(static_cast<size_t>(R));
  for (int64_t r = 0; r < R; ++r) {
    outputs.push_back(attend(changed([&](const torch::Tensor& rows) {
      return rows.unflatten(1, {G, R}).select(2, r);
    })));
  }
  return at::stack(outputs, 2).flatten(1, 2);
}

} // namespace torch_attention::kernels
