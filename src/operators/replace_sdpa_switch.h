#pragma once

#include <c10/core/DispatchKeySet.h>

/// Turns our kernels for LibTorch's attention on and off. They stay registered
/// as long as the library is loaded and check the switch in each call, because
/// the dispatcher's tables must not change while threads read them.
namespace torch_attention::operators {

/// Returns whether our kernels should compute calls.
bool is_switched_on();

/// Counts a call that was made while the kernels were switched on.
void count_call(bool ours);

/// Returns the keys that come after BackendSelect, where our kernels are
/// registered: redispatching to them calls LibTorch's own kernel.
inline c10::DispatchKeySet after_ours(c10::DispatchKeySet keys) {
  return keys &
      c10::DispatchKeySet(
             c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
}

} // namespace torch_attention::operators
