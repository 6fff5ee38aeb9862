#pragma once

#include <support/test.h>

namespace torch_attention::testing {

/// During its lifetime our kernels compute LibTorch's attention, or do not.
class SdpaReplaced {
 public:
  explicit SdpaReplaced(bool replaced = true) : before_(is_sdpa_replaced()) {
    set(replaced);
  }
  ~SdpaReplaced() {
    set(before_);
  }
  SdpaReplaced(const SdpaReplaced&) = delete;
  SdpaReplaced& operator=(const SdpaReplaced&) = delete;

 private:
  static void set(bool replaced) {
    replaced ? replace_sdpa() : restore_sdpa();
  }

  bool before_;
};

/// The calls that `fn` makes while LibTorch's attention is ours.
template <typename Fn>
SdpaCalls calls_of(const Fn& fn) {
  const SdpaReplaced replaced;
  const auto before = sdpa_calls();
  fn();
  const auto after = sdpa_calls();
  return {after.ours - before.ours, after.libtorch - before.libtorch};
}

} // namespace torch_attention::testing
