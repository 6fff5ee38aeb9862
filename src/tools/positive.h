#pragma once

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

namespace torch_attention::tools {

/// Lets only whole numbers from 1 on be arguments. CLI11's own validator prints
/// the largest number in full.
inline const CLI::Validator kPositive(
    [](std::string& text) {
      int64_t value = 0;
      const auto* end = text.data() + text.size();
      const auto read = std::from_chars(text.data(), end, value);
      return read.ec == std::errc() && read.ptr == end && value > 0
          ? std::string()
          : "expected a whole number from 1 on, but got \"" + text + "\"";
    },
    "POSITIVE");

} // namespace torch_attention::tools
