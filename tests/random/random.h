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

/// Choices that follow from one number.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /// In [from, to]. (Not by a distribution, whose numbers differ from one
  /// library to another.)
  int64_t integer(int64_t from, int64_t to) {
    return from +
        static_cast<int64_t>(engine_() % static_cast<uint64_t>(to - from + 1));
  }

  /// True once in `times`.
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

  /// Says what the case is, to be printed if it fails.
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

/// What a check has found.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Failure(c10::str(parts...));
}

/// Each makes a case of its kind from the numbers of `random`, checks it, and
/// throws a Failure that describes it.
void check_attention(Random& random);
void check_small_attention(Random& random);
void check_dropout(Random& random);
void check_module(Random& random);
void check_cache(Random& random);

} // namespace torch_attention::random
