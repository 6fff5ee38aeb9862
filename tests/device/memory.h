#pragma once

#include <c10/core/Allocator.h>
#include <torch/types.h>

#include <mutex>
#include <vector>

/// Memory of the emulated device: pages of this process that neither reads nor
/// writes, so that code which takes a device's pointer for the host's faults.
namespace torch_attention::testing {

/// Returns the allocator of the emulated device.
c10::Allocator* device_allocator();

/// Returns whether the environment asks for a real device, by
/// `TORCH_ATTENTION_TEST_DEVICE=cuda`.
bool on_cuda();

/// Returns the device of the tests: the first CUDA device, or the emulated one.
torch::Device device();

/// Makes the memory of some tensors of the device readable and writable during
/// its lifetime, one thread at a time.
class OpenedMemory {
 public:
  explicit OpenedMemory(const std::vector<torch::Tensor>& tensors);
  ~OpenedMemory();
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;
  OpenedMemory(OpenedMemory&&) = delete;
  OpenedMemory& operator=(OpenedMemory&&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  std::vector<c10::Storage> storages_;
};

/// Returns `x`, which is on the device, as a tensor of the CPU with its memory,
/// to be used while that is opened.
torch::Tensor as_host(const torch::Tensor& x);

} // namespace torch_attention::testing
