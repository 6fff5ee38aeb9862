#pragma once

#include <chrono>

// LibTorch's ProcessGroupGloo.hpp includes headers of Gloo, which LibTorch does
// not ship. This file declares what that header says of their classes, so that
// it compiles: it holds them by pointers alone, and we call none of their
// methods.
namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

} // namespace gloo
