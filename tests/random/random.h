#pragma once

#include <c10/util/StringUtil.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace torch_attention::random {

/// Makes choices that all follow from one number.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /// Returns an integer in [from, to]. (Not by a distribution of the standard
  /// library, whose numbers differ from one library to another.)
  int64_t integer(int64_t from, int64_t to) {
    return from +
        static_cast<int64_t>(engine_() % static_cast<uint64_t>(to - from + 1));
  }

  /// Returns true once in `times`.
  bool once_in(int64_t times) {
    return integer(1, times) == 1;
  }

  double number(double from, double to) {
    return from + (to - from) * static_cast<double>(engine_() >> 11) * 0x1p-53;
  }

  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    return choices
        .begin()[integer(0, static_cast<int64_t>(choices.size()) - 1)];
  }

  /// Sets the description of the case, which is printed if it fails.
  void describe(std::string description) {
    description_ = std::move(description);
  }

  const std::string& description() const {
    return description_;
  }

 private:
  std::mt19937_64 engine_;
  std::string description_;
};

/// The error that a check found.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Failure(c10::str(parts...));
}

/// Each of these makes a case of its kind from the numbers of `random` and
/// checks it. It throws a Failure that describes a fault.
void check_attention(Random& random);
void check_packed(Random& random);
void check_masks(Random& random);
void check_block_mask(Random& random);
void check_by_loops(Random& random);
void check_small_attention(Random& random);
void check_non_finite(Random& random);
void check_failing_allocations(Random& random);
void check_dropout(Random& random);
void check_module(Random& random);
void check_cache(Random& random);

} // namespace torch_attention::random
