#include <cpu/attention_by_definition.h>
#include <cpu/test.h>
#include <support/sanitized.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace torch_attention::cpu::testing {

namespace {

const char* name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::kNeonBf16:
      return "NEON with pairs of bfloat16";
    case InstructionSet::kNeon:
      return "NEON";
    case InstructionSet::kAmxBf16:
      return "AMX";
    case InstructionSet::kAvx512Bf16:
      return "AVX-512 with pairs of bfloat16";
    case InstructionSet::kAvx512:
      return "AVX-512";
    case InstructionSet::kAvx2:
      return "AVX2";
    default:
      return "portable";
  }
}

template <typename X>
const char* name_of_type() {
  return std::is_same_v<X, double> ? "double"
      : std::is_same_v<X, float>   ? "float"
      : std::is_same_v<X, Float16> ? "float16"
                                   : "bfloat16";
}

/// The tolerance for numbers about 1. Errors of float grow with the sizes of
/// scores and sums.
template <typename X>
constexpr double kRounding = std::is_same_v<X, double> ? 1e-11
    : std::is_same_v<X, float>                         ? 2e-5
    : std::is_same_v<X, Float16>                       ? 4e-3
                                                       : 2e-2;

/// The largest |x - expected| in units of tolerance * (1 + |expected|);
/// infinity where one is NaN or infinite and the other is not.
double largest_difference(
    const std::vector<double>& x,
    const std::vector<double>& expected,
    double tolerance) {
  if (x.size() != expected.size()) {
    return kInfinity;
  }
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == expected[i] || (std::isnan(x[i]) && std::isnan(expected[i]))) {
      continue;
    }
    const auto difference = std::abs(x[i] - expected[i]) /
        (tolerance * (1 + std::abs(expected[i])));
    largest =
        std::isnan(difference) ? kInfinity : std::max(largest, difference);
  }
  return largest;
}

/// Returns n: tests go through one of n sizes and random cases.
int every() {
  static const int number = [] {
    const auto* value = std::getenv("TORCH_ATTENTION_CPU_TESTS_EVERY");
    const int read = value == nullptr ? 1 : std::atoi(value);
    if (read < 1) {
      throw std::runtime_error(
          "TORCH_ATTENTION_CPU_TESTS_EVERY: expected a number from 1 on, got " +
          std::string(value));
    }
    return read;
  }();
  return number;
}

} // namespace

std::vector<int64_t> sizes_of(std::initializer_list<int64_t> all) {
  std::vector<int64_t> some;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % static_cast<size_t>(every()) == 0 || i + 1 == all.size()) {
      some.push_back(all.begin()[i]);
    }
  }
  return some;
}

int random_cases(int usual) {
  const int share = (torch_attention::testing::kIsSanitized ? 10 : 1) * every();
  return (usual + share - 1) / share;
}

template <typename X>
InstructionSet each_instruction_set() {
  std::vector<InstructionSet> sets;
  for (const auto set :
       {InstructionSet::kPortable,
        InstructionSet::kAvx2,
        InstructionSet::kAvx512,
        InstructionSet::kAvx512Bf16,
        InstructionSet::kAmxBf16,
        InstructionSet::kNeon,
        InstructionSet::kNeonBf16}) {
    // Products by pairs are of bfloat16 alone.
    const bool has_own = std::is_same_v<X, BFloat16> || !has_pairs(set);
    if (has_own && is_supported(set)) {
      sets.push_back(set);
    }
  }
  const auto set = GENERATE_COPY(from_range(sets));
  set_instruction_set(set);
  return set;
}

template <typename X>
std::string description(const Case& c) {
  return std::string(name_of(instruction_set())) + ", " + name_of_type<X>() +
      ", " + c.text();
}

template <typename X>
void check_by_definition(const Problem<X>& computed, double extra_tolerance) {
  INFO(description<X>(computed.sizes));
  const auto expected = attention_by_definition(
      computed.arguments, computed.grad_output.as_input());
  const auto tolerance = kRounding<X> + extra_tolerance;
  // In half precision gradients are sums of rounded numbers.
  const auto grad_tolerance = sizeof(X) == 2 ? 5 * tolerance : tolerance;
  CHECK(
      largest_difference(
          computed.output.numbers(), expected.output, tolerance) <= 1);
  // The logsumexp is never stored in half precision. It is not compared where
  // ALiBi shifts all scores of a query beyond the keys.
  if (!computed.sizes.alibi || !computed.sizes.offsets) {
    CHECK(
        largest_difference(
            computed.logsumexp(),
            expected.logsumexp,
            kRounding<Compute<X>> + extra_tolerance) <= 1);
  }
  CHECK(
      largest_difference(
          computed.grad_query.numbers(), expected.grad_query, grad_tolerance) <=
      1);
  CHECK(
      largest_difference(
          computed.grad_key.numbers(), expected.grad_key, grad_tolerance) <= 1);
  CHECK(
      largest_difference(
          computed.grad_value.numbers(), expected.grad_value, grad_tolerance) <=
      1);
  const auto check_sums = [&](const std::vector<Compute<X>>& found,
                              const std::vector<double>& sums,
                              int64_t summands) {
    // The summands may cancel.
    const std::vector<double> numbers(found.begin(), found.end());
    CHECK(
        largest_difference(
            numbers, sums, grad_tolerance * static_cast<double>(summands)) <=
        1);
  };
  const auto& sizes = computed.sizes;
  if (sizes.alibi) {
    check_sums(
        computed.grad_slopes,
        expected.grad_slopes,
        sizes.B * sizes.T * sizes.S);
  }
  if (sizes.sinks) {
    check_sums(computed.grad_sinks, expected.grad_sinks, sizes.B * sizes.T);
  }
  if (computed.sizes.bias) {
    const std::vector<double> grad_bias(
        computed.grad_bias.begin(), computed.grad_bias.end());
    CHECK(
        largest_difference(grad_bias, expected.grad_bias, grad_tolerance) <= 1);
  }
  CHECK(computed.output.gaps_are_untouched());
  CHECK(computed.grad_query.gaps_are_untouched());
  CHECK(computed.grad_key.gaps_are_untouched());
  CHECK(computed.grad_value.gaps_are_untouched());
}

template InstructionSet each_instruction_set<float>();
template InstructionSet each_instruction_set<double>();
template InstructionSet each_instruction_set<BFloat16>();
template InstructionSet each_instruction_set<Float16>();
template std::string description<float>(const Case&);
template std::string description<double>(const Case&);
template std::string description<BFloat16>(const Case&);
template std::string description<Float16>(const Case&);
template void check_by_definition(const Problem<float>&, double);
template void check_by_definition(const Problem<double>&, double);
template void check_by_definition(const Problem<BFloat16>&, double);
template void check_by_definition(const Problem<Float16>&, double);

} // namespace torch_attention::cpu::testing
