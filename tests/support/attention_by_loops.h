#pragma once

#include <torch/types.h>

#include <cmath>
#include <limits>
#include <vector>

namespace torch_attention::testing {

/// Computes scaled dot product attention by plain loops in double: the kernels
/// are tested against it. query (N, T, D), key (N, S, D), value (N, S, Dv),
/// hidden bool (N, T, S) -> (N, T, Dv).
inline torch::Tensor attention_by_loops(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const torch::Tensor& hidden,
    double scale) {
  const auto q = query.detach().to(torch::kDouble).contiguous();
  const auto k = key.detach().to(torch::kDouble).contiguous();
  const auto v = value.detach().to(torch::kDouble).contiguous();
  const auto h = hidden.contiguous();
  const auto qa = q.accessor<double, 3>();
  const auto ka = k.accessor<double, 3>();
  const auto va = v.accessor<double, 3>();
  const auto ha = h.accessor<bool, 3>();
  auto output = torch::zeros({q.size(0), q.size(1), v.size(2)}, torch::kDouble);
  auto oa = output.accessor<double, 3>();
  for (int64_t n = 0; n < q.size(0); ++n) {
    for (int64_t t = 0; t < q.size(1); ++t) {
      std::vector<double> weights;
      double sum = 0;
      for (int64_t s = 0; s < k.size(1); ++s) {
        double score = 0;
        for (int64_t d = 0; d < q.size(2); ++d) {
          score += qa[n][t][d] * ka[n][s][d];
        }
        weights.push_back(ha[n][t][s] ? 0.0 : std::exp(score * scale));
        sum += weights.back();
      }
      for (int64_t s = 0; s < k.size(1) && sum > 0; ++s) {
        for (int64_t d = 0; d < v.size(2); ++d) {
          oa[n][t][d] += weights[static_cast<size_t>(s)] / sum * va[n][s][d];
        }
      }
    }
  }
  return output;
}

} // namespace torch_attention::testing
