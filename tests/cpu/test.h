#pragma once

// Helpers of the tests of the CPU kernels. They do without LibTorch, and so
// compile fast.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <cpu/attention.h>
#include <cpu/problem.h>

#include <string>

namespace torch_attention::cpu::testing {

/// Runs the test case for each instruction set that this machine has.
InstructionSet each_instruction_set();

/// The number of random cases: fewer under the address sanitizer, where each
/// takes long.
constexpr int random_cases(int usual) {
#if defined(__SANITIZE_ADDRESS__)
  return (usual + 2) / 3;
#else
  return usual;
#endif
}

/// Text for a test that fails: the instruction set, the dtype, the sizes.
template <typename X>
std::string description(const Case& c);

/// `computed` equals attention by its definition: output, logsumexp and the
/// gradients, as closely as X allows and `extra_tolerance` more.
template <typename X>
void check_by_definition(
    const Problem<X>& computed,
    double extra_tolerance = 0);

/// Computes a problem and checks it by definition.
template <typename X>
void check_by_definition(const Case& c, double extra_tolerance = 0) {
  Problem<X> problem(c);
  problem.compute();
  check_by_definition(problem, extra_tolerance);
}

} // namespace torch_attention::cpu::testing
