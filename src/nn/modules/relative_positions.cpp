#include <nn/modules/relative_positions.h>

#include <ATen/ops/einsum.h>
#include <ATen/ops/upsample_linear1d.h>

#include <algorithm>
#include <cmath>

namespace torch_attention::detail {

torch::Tensor sinusoids_of_distances(
    int64_t T,
    int64_t size,
    SinusoidOrder order,
    const torch::TensorOptions& options) {
  // As in Python, where half precision could not represent the angles, and
  // float64 gets those of float32.
  const auto dtype = torch::typeMetaToScalarType(options.dtype());
  const auto floats = options.dtype(torch::kFloat).requires_grad(false);
  const auto step = -std::log(10000.0) / static_cast<double>(size);
  const auto frequencies = (torch::arange(0, size, 2, floats) * step).exp();
  const auto distances =
      T - 1 - torch::arange(std::max<int64_t>(2 * T - 1, 0), floats);
  const auto angles = distances.unsqueeze(1) * frequencies;
  const auto interleaved = order == SinusoidOrder::kInterleaved;
  return torch::stack({angles.sin(), angles.cos()}, interleaved ? -1 : -2)
      .flatten(-2)
      .to(dtype);
}

torch::Tensor scores_of_distances(
    const torch::Tensor& queries,
    const torch::Tensor& vectors) {
  const auto B = queries.size(0);
  const auto H = queries.size(1);
  const auto T = queries.size(2);
  const auto N = 2 * T - 1;
  if (B * T == 0) {
    return queries.new_empty({B, H, T, T});
  }
  // One matrix of B * T rows per head.
  const auto rows = queries.transpose(0, 1).reshape({H, B * T, -1});
  const auto products = torch::bmm(rows, vectors.transpose(1, 2)).contiguous();
  // Row t begins with distance T - 1, but its first key has distance t: each
  // row starts one column before the row above it.
  return products.as_strided({H, B, T, T}, {B * T * N, T * N, N - 1, 1}, T - 1)
      .transpose(0, 1);
}

torch::Tensor scores_of_keys(
    const torch::Tensor& keys,
    const torch::Tensor& vectors) {
  return scores_of_distances(keys, vectors.flip(1)).transpose(2, 3);
}

torch::Tensor rows_of_distances(
    int64_t T,
    const DistanceBuckets& distances,
    torch::Device device) {
  const auto span = distances.span();
  auto bucket = T - 1 -
      torch::arange(std::max<int64_t>(2 * T - 1, 0),
                    torch::device(device).dtype(torch::kLong));
  if (distances.buckets) {
    const auto half = *distances.buckets / 2;
    const auto length = bucket.abs();
    // In float32, as models are trained: the bucket of a distance between two
    // depends on the rounding.
    const auto logarithm = [&](const torch::Tensor& x) {
      return (x.to(torch::kFloat) / static_cast<double>(half)).log();
    };
    const auto last = logarithm(torch::full(
        {1},
        distances.max_distance - 1,
        torch::device(device).dtype(torch::kLong)));
    const auto beyond =
        (logarithm(length.clamp_min(half)) / last * (half - 1)).ceil() + half;
    bucket = torch::where(
        length.le(half), bucket, beyond.to(torch::kLong) * bucket.sign());
  }
  return (bucket + span).clamp(0, 2 * span - 1);
}

torch::Tensor scores_of_learned(
    const torch::Tensor& queries,
    const torch::Tensor& vectors,
    const LearnedDistances& distances) {
  const auto B = queries.size(0);
  const auto H = queries.size(1);
  const auto T = queries.size(2);
  if (B * T == 0) {
    return queries.new_empty({B, H, T, T});
  }
  // The vectors of distances that occur.
  const auto before =
      std::min(distances.last_first ? distances.right : distances.left, T - 1);
  const auto after =
      std::min(distances.last_first ? distances.left : distances.right, T - 1);
  const auto first =
      (distances.last_first ? distances.right : distances.left) - before;
  const auto products = torch::matmul(
      queries.reshape({B * H * T, -1}),
      vectors.narrow(0, first, before + after + 1).t());
  const auto tokens = torch::arange(T, queries.options().dtype(torch::kLong));
  const auto from_query = tokens - tokens.unsqueeze(1);
  const auto places =
      (distances.last_first ? -from_query : from_query).clamp(-before, after) +
      before;
  return products.view({B, H, T, -1}).gather(-1, places.expand({B, H, T, T}));
}

namespace {

/// Returns the vectors of all pairs of `side` rows, (side, side, D), with a
/// table of another number of rows interpolated.
torch::Tensor vectors_of_side(const torch::Tensor& table, int64_t side) {
  const auto N = 2 * side - 1;
  const auto resized = table.size(0) == N
      ? table
      : torch::upsample_linear1d(
            table.t().unsqueeze(0), {N}, /*align_corners=*/false)
            .squeeze(0)
            .t();
  const auto rows = torch::arange(side, table.options().dtype(torch::kLong));
  return resized.index({rows.unsqueeze(1) - rows + (side - 1)});
}

} // namespace

torch::Tensor scores_of_image(
    const torch::Tensor& queries,
    const ImageDistances& distances) {
  const auto image = queries.unflatten(2, {distances.height, distances.width});
  const auto by_rows = torch::einsum(
      "bhrcd,rkd->bhrck",
      {image, vectors_of_side(distances.of_rows, distances.height)});
  const auto by_columns = torch::einsum(
      "bhrcd,ckd->bhrck",
      {image, vectors_of_side(distances.of_columns, distances.width)});
  return (by_rows.unsqueeze(-1) + by_columns.unsqueeze(-2))
      .flatten(4, 5)
      .flatten(2, 3);
}

} // namespace torch_attention::detail
