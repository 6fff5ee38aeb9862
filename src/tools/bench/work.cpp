#include <tools/bench/work.h>

#include <algorithm>
#include <initializer_list>

namespace torch_attention::tools {

namespace {

double product_of(std::initializer_list<int64_t> sizes) {
  double product = 1;
  for (const auto size : sizes) {
    product *= static_cast<double>(size);
  }
  return product;
}

int64_t num_keys(const Work& work) {
  return std::max(work.S, work.T);
}

/// Returns the number of pairs of a query and a key that it sees, in one head.
double visible_pairs(const Work& work) {
  // The first tokens see a whole triangle, later ones rows of `window`.
  const auto pairs = [&](int64_t tokens) {
    const auto window = std::min(work.window.value_or(tokens), tokens);
    return product_of({window, window + 1}) / 2 +
        product_of({tokens - window, window});
  };
  const auto S = num_keys(work);
  return pairs(S) - pairs(S - work.T);
}

} // namespace

double Work::flops() const {
  constexpr double kForward = 2;
  constexpr double kBackward = 5;
  const auto attention = 2 * product_of({B, H, D}) * visible_pairs(*this);
  auto total = attention * (backward ? kForward + kBackward : kForward);
  if (is_module()) {
    const auto inputs = 2 * product_of({3, B, T, C, H, D});
    const auto output = out_proj ? 2 * product_of({B, T, H, D, H, D}) : 0;
    total += (inputs + output) * (backward ? 3 : 1);
  }
  return total;
}

double Work::bytes() const {
  const auto heads = product_of({B, T, H, D});
  auto floats = 2 * heads + 2 * product_of({B, num_keys(*this), H, D});
  if (is_module()) {
    floats = product_of({B, T, C}) + heads + product_of({3, C, H, D}) +
        (out_proj ? product_of({H, D, H, D}) : 0);
  }
  return sizeof(float) * floats * (backward ? 2 : 1);
}

} // namespace torch_attention::tools
