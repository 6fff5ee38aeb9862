#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace torch_attention::distributed {

/// Returns the Gloo backend of a group, or null if LibTorch has no Gloo.
c10::intrusive_ptr<c10d::Backend> gloo_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout);

} // namespace torch_attention::distributed
