#include <harness/work.h>

#include <algorithm>
#include <initializer_list>

namespace torch_attention::benchmarks {

namespace {

double product_of(std::initializer_list<int64_t> sizes) {
  double product = 1;
  for (const auto size : sizes) {
    product *= static_cast<double>(size);
  }
  return product;
}

/// Returns the number of pairs of a query and a key that it sees, in one head.
double visible_pairs(const Work& work) {
  const auto S = work.num_keys();
  if (!work.causal) {
    return product_of({work.T, S});
  }
  // The first tokens see a whole triangle, later ones rows of `window`.
  const auto pairs = [&](int64_t tokens) {
    const auto window = std::min(work.window.value_or(tokens), tokens);
    return product_of({window, window + 1}) / 2 +
        product_of({tokens - window, window});
  };
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
  auto numbers =
      2 * heads + 2 * product_of({B, num_keys(), num_key_heads(), D});
  if (is_module()) {
    numbers = product_of({B, T, C}) + heads + product_of({3, C, H, D}) +
        (out_proj ? product_of({H, D, H, D}) : 0);
  }
  return static_cast<double>(torch::elementSize(dtype)) * numbers *
      (backward ? 2 : 1);
}

double Work::key_bytes() const {
  return static_cast<double>(torch::elementSize(dtype)) *
      product_of({2, B, num_keys(), num_key_heads(), D}) * (backward ? 3 : 1);
}

Work attention_work(int64_t B, int64_t H, int64_t T, int64_t D) {
  Work work;
  work.B = B;
  work.H = H;
  work.T = T;
  work.D = D;
  return work;
}

} // namespace torch_attention::benchmarks
