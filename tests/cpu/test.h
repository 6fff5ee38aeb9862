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

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace torch_attention::cpu::testing {

/// Runs the test case for each instruction set that this machine has and that
/// has kernels of its own for numbers stored as X.
template <typename X>
InstructionSet each_instruction_set();

/// Returns the sizes that a test goes through: all, or in an emulator, where
/// TORCH_ATTENTION_CPU_TESTS_EVERY=n is set, each n-th and the last.
std::vector<int64_t> sizes_of(std::initializer_list<int64_t> all);

/// Returns the number of random cases: fewer under the address sanitizer, where
/// each takes long, and one of n where TORCH_ATTENTION_CPU_TESTS_EVERY=n is
/// set.
int random_cases(int usual);

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
