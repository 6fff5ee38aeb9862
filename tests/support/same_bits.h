#pragma once

#include <torch_attention/same_bits.h>

namespace torch_attention::testing {

/// Sets `same_bits` while it exists.
struct SameBits {
  SameBits() {
    set_same_bits(true);
  }
  ~SameBits() {
    set_same_bits(false);
  }
  SameBits(const SameBits&) = delete;
  SameBits& operator=(const SameBits&) = delete;
};

} // namespace torch_attention::testing
