#pragma once

/// A record of a CUDA device, for tests of what code asks of it.
namespace torch_attention::testing {

/// Writes to `Recorder`, from now on, which operators LibTorch computes on CUDA
/// devices, those inside others included, but not those inside its attention:
/// an output with memory of its own is an allocation, and a copy that blocks,
/// `item()` or `nonzero` a wait.
void record_cuda();

} // namespace torch_attention::testing
