#pragma once

#include <chrono>

// LibTorch's ProcessGroupGloo.hpp includes headers of Gloo, which LibTorch does
// not ship. This file declares what that header needs to compile: it only holds
// pointers to Gloo's classes, and we call none of their methods.
namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

} // namespace gloo
