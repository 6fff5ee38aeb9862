#pragma once

namespace gpt {

/// Takes note of SIGINT and SIGTERM while it lives, unless they are ignored. A
/// second one ends the program at once.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// Returns the signal that came, or 0.
  static int signal();

  /// Ends the program by the signal that came, so that who started it sees
  /// this; returns if none came.
  static void raise_again();
};

} // namespace gpt
