#include "growing_text.h"

#include <algorithm>
#include <utility>

namespace serve {

namespace {

/// Returns the number of bytes at the end of a text that begin a character of
/// UTF-8, but do not complete it.
size_t incomplete_character(const std::string& text) {
  constexpr size_t kLongest = 4;
  for (size_t n = 1; n < kLongest && n <= text.size(); ++n) {
    const auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if (byte >= 0x80 && byte < 0xC0) {
      continue; // within a character
    }
    const size_t size = byte >= 0xF0 ? 4
        : byte >= 0xE0               ? 3
        : byte >= 0xC0               ? 2
                                     : 1;
    return size > n ? n : 0;
  }
  return 0;
}

/// Returns the size of the longest end of `text` with which `stop` begins.
size_t begun(const std::string& text, const std::string& stop) {
  for (auto n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.compare(text.size() - n, n, stop, 0, n) == 0) {
      return n;
    }
  }
  return 0;
}

} // namespace

std::string GrowingText::add(const std::string& bytes) {
  rest_ += bytes;
  auto first = std::string::npos;
  for (const auto& stop : stops_) {
    first = std::min(first, rest_.find(stop));
  }
  if (first != std::string::npos) {
    is_stopped_ = true;
    rest_.resize(first);
    return finish();
  }
  const auto size = rest_.size() - num_held_back();
  auto added = rest_.substr(0, size);
  rest_.erase(0, size);
  return added;
}

std::string GrowingText::finish() {
  return std::exchange(rest_, std::string());
}

size_t GrowingText::num_held_back() const {
  auto held = incomplete_character(rest_);
  for (const auto& stop : stops_) {
    held = std::max(held, begun(rest_, stop));
  }
  return held;
}

} // namespace serve
