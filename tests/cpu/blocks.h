#pragma once

#include <cpu/problem.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace torch_attention::cpu::testing {

/// Keys or values of sequences in blocks (G, size, features), each in memory of
/// its own that ends with the block. Rows without a token are NaN, and there
/// are no blocks beyond the length of a sequence.
template <typename X>
class Blocks {
 public:
  /// `tokens` (B, G, S, features), of which a sequence has `lengths` (B).
  Blocks(
      Buffer<X>& tokens,
      int64_t heads,
      int64_t features,
      const std::vector<int64_t>& lengths,
      int64_t size)
      : per_sequence_(
            (*std::max_element(lengths.begin(), lengths.end()) + size - 1) /
            size) {
    int64_t b = 0;
    for (const auto length : lengths) {
      for (int64_t i = 0; i < per_sequence_; ++i) {
        std::vector<X> block;
        for (int64_t g = 0; i * size < length && g < heads; ++g) {
          for (auto s = i * size; s < (i + 1) * size; ++s) {
            for (int64_t d = 0; d < features; ++d) {
              block.push_back(
                  s < length ? tokens(b, g, s, d) : stored<X>(kNaN));
            }
          }
        }
        memory_.push_back(std::move(block));
      }
      ++b;
    }
    for (const auto& block : memory_) {
      table_.push_back(block.empty() ? nullptr : block.data());
    }
  }

  const void* const* table() const {
    return table_.data();
  }

  int64_t per_sequence() const {
    return per_sequence_;
  }

 private:
  int64_t per_sequence_;
  std::vector<std::vector<X>> memory_;
  std::vector<const void*> table_;
};

} // namespace torch_attention::cpu::testing
