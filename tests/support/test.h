#pragma once

// Every test includes this first: LibTorch and Catch2 both define CHECK, and
// the tests use Catch2's.

#include <torch/torch.h>

// Macros of c10's logging, with and without glog.
#undef CHECK
#undef CHECK_EQ
#undef CHECK_GE
#undef CHECK_GT
#undef CHECK_LE
#undef CHECK_LT
#undef CHECK_NE
#undef CHECK_NEAR
#undef CHECK_NOTNULL
#undef CHECK_STREQ
#undef CHECK_STRNE

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#define TORCH_ATTENTION_CATCH2_MAJOR 3
#else
#include <catch2/catch.hpp>
#define TORCH_ATTENTION_CATCH2_MAJOR 2
#endif

#include <torch_attention/torch_attention.h>

#include <string>
#include <utility>

namespace torch_attention::testing {

#if TORCH_ATTENTION_CATCH2_MAJOR >= 3
template <typename T>
using Matcher = Catch::Matchers::MatcherBase<T>;

inline auto ContainsText(const std::string& text) {
  return Catch::Matchers::ContainsSubstring(text);
}
using Catch::Approx;
#else
template <typename T>
using Matcher = Catch::MatcherBase<T>;

inline auto ContainsText(const std::string& text) {
  return Catch::Matchers::Contains(text);
}
using Catch::Detail::Approx;
#endif

/// Matches a c10::Error whose message, without the backtrace, has `text`.
class HasMessage : public Matcher<c10::Error> {
 public:
  explicit HasMessage(std::string text) : text_(std::move(text)) {}

  bool match(const c10::Error& error) const override {
    const std::string message = error.what_without_backtrace();
    return message.find(text_) != std::string::npos;
  }

  std::string describe() const override {
    return "has in its message: \"" + text_ + "\"";
  }

 private:
  std::string text_;
};

} // namespace torch_attention::testing

/// Checks that `expression` throws c10::Error with `text` in its message.
#define THROWS_WITH(expression, text) \
  CHECK_THROWS_MATCHES(               \
      expression, c10::Error, ::torch_attention::testing::HasMessage(text))

namespace Catch {

/// Prints shape and dtype always, but values of small tensors only.
template <>
struct StringMaker<torch::Tensor> {
  static std::string convert(const torch::Tensor& tensor) {
    if (!tensor.defined()) {
      return "undefined tensor";
    }
    std::string text =
        c10::str(tensor.toString(), " of shape ", tensor.sizes());
    if (tensor.numel() <= 64) {
      text += c10::str(":\n", tensor.detach(), "\n");
    }
    return text;
  }
};

/// Prints no backtrace, which hides the message.
template <>
struct StringMaker<c10::Error> {
  static std::string convert(const c10::Error& error) {
    return error.what_without_backtrace();
  }
};

} // namespace Catch
