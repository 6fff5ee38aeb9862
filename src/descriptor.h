#pragma once

#include <unistd.h>

namespace torch_attention {

/// An open file or folder, closed by the destructor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    close();
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;

  bool is_open() const {
    return number_ >= 0;
  }
  int number() const {
    return number_;
  }
  /// Closes the open file, if any, and takes `number` instead.
  void open(int number) {
    close();
    number_ = number;
  }
  void close() {
    if (is_open()) {
      ::close(number_);
      number_ = -1;
    }
  }

 private:
  int number_;
};

} // namespace torch_attention
