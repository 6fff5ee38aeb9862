#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace serve {

/// A text of bytes that ends before the first of some stop texts. Bytes are
/// held back while they may be the beginning of one, or of a character that is
/// incomplete.
class GrowingText {
 public:
  /// No stop text is empty.
  explicit GrowingText(std::vector<std::string> stops)
      : stops_(std::move(stops)) {}

  /// Returns the text that `bytes` add.
  std::string add(const std::string& bytes);

  /// Returns the text that was held back.
  std::string finish();

  /// Returns whether a stop text came, which is the end.
  bool is_stopped() const {
    return is_stopped_;
  }

 private:
  size_t num_held_back() const;

  std::vector<std::string> stops_;
  /// Bytes that were not returned yet.
  std::string rest_;
  bool is_stopped_ = false;
};

} // namespace serve
