#pragma once

#include <c10/core/DispatchKeySet.h>

/// The switch by which our kernels compute LibTorch's attention. The kernels
/// that the dispatcher calls stay registered as long as the library is loaded,
/// and ask here at each call: the dispatcher's tables may not change while
/// threads read them.
namespace torch_attention::operators {

/// Returns whether calls are to be computed by our kernels.
bool is_switched_on();

/// Counts a call, made while it is switched on.
void count_call(bool ours);

/// The keys after BackendSelect, for which kernels of ours are registered: by
/// these LibTorch's own kernel is called.
inline c10::DispatchKeySet after_ours(c10::DispatchKeySet keys) {
  return keys &
      c10::DispatchKeySet(
             c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
}

} // namespace torch_attention::operators
