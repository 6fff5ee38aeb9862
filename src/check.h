#pragma once

#include <format_text.h>

#include <c10/util/Exception.h>

/// Throws c10::Error unless the condition holds. The message is formatted as by
/// `format_text`, and its arguments are evaluated only then.
///
/// Example:
/// ```
/// TORCH_ATTENTION_CHECK(
///     size > 0, "{}: expected a size > 0, but got {}", name, size);
/// ```
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a function evaluates arguments
#define TORCH_ATTENTION_CHECK(condition, ...) \
  TORCH_CHECK(condition, ::torch_attention::format_text(__VA_ARGS__))
