#pragma once

#include <string>
#include <vector>

namespace serve {

/// Lines from a descriptor, and SIGINT and SIGTERM while it lives. A second
/// signal ends the program at once. One object at a time.
class Input {
 public:
  struct Line {
    std::string text;
    /// Longer than `kLongestLine`; then there is no text.
    bool is_too_long = false;
  };

  static constexpr size_t kLongestLine = size_t{1} << 24;

  /// Throws c10::Error if signals cannot be handled.
  explicit Input(int descriptor);
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  /// Returns the lines that have come. With `waits`, does not return before
  /// there is something to read, the end, or a signal.
  /// Throws c10::Error if the descriptor cannot be read.
  std::vector<Line> read(bool waits);

  bool is_at_end() const {
    return is_at_end_;
  }

  /// Returns whether a signal came.
  static bool is_interrupted();

 private:
  void take(const char* data, size_t size, std::vector<Line>& lines);

  int descriptor_;
  std::string begun_;
  bool is_too_long_ = false;
  bool is_at_end_ = false;
};

} // namespace serve
