#pragma once

#include <chrono>

// LibTorch's ProcessGroupGloo.hpp includes headers of Gloo, which LibTorch does
// not ship. What it says of their classes is declared here, so that the header
// compiles: it holds them by pointers alone, and we call none of their methods.
namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

} // namespace gloo
