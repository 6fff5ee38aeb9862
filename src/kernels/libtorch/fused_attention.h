#pragma once

#include <kernels/attention.h>
#include <kernels/libtorch/fused_call.h>

/// LibTorch's fused kernels with what they lack: sinks, zeros for queries that
/// see no key, and gradients under windows.
namespace torch_attention::kernels {

/// Numbers for the rows of scores, each of which may be undefined.
struct RowTensors {
  /// Broadcasts to (B, H, T): one more score, without a value
  torch::Tensor sinks;
  /// bool, broadcasts to (B, H, T), true where a query sees no key. Undefined
  /// for packed sequences.
  torch::Tensor no_key;
};

/// A call and what its gradients need beside it.
struct FusedAttention {
  FusedCall call;
  RowTensors rows;
  /// int64 (B + 1) on the CPU, of packed sequences with gradients
  torch::Tensor query_starts;
  torch::Tensor key_starts;
};

/// Returns the output, in the shape of the query. Autograd records it; `added`
/// of the call has no gradient.
torch::Tensor fused(const FusedAttention& attention);

} // namespace torch_attention::kernels
