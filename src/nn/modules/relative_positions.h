#pragma once

#include <torch_attention/nn/options/relative_attention.h>

#include <torch/types.h>

#include <cstdint>
#include <optional>

/// Products of queries and keys with vectors of the distances between T queries
/// and T keys, as a bias of the scores (B, H, T, T).
namespace torch_attention::detail {

/// Returns the sinusoids (2 T - 1, size) of the distances t - s from T - 1 down
/// to 1 - T, of the dtype and on the device of `options`.
torch::Tensor sinusoids_of_distances(
    int64_t T,
    int64_t size,
    SinusoidOrder order,
    const torch::TensorOptions& options);

/// Returns the products of query t with the vector of distance t - s, for
/// queries (B, H, T, D) and vectors (H, 2 T - 1, D) of the distances from T - 1
/// down to 1 - T.
torch::Tensor scores_of_distances(
    const torch::Tensor& queries,
    const torch::Tensor& vectors);

/// Returns the products of key s with the vector of distance t - s, for keys
/// (B, H, T, D) and vectors (H, 2 T - 1, D) as in `scores_of_distances`.
torch::Tensor scores_of_keys(
    const torch::Tensor& keys,
    const torch::Tensor& vectors);

/// How embeddings of distances are stored (`RelativeAttentionOptions`).
struct DistanceBuckets {
  int64_t max_distance;
  std::optional<int64_t> buckets;

  /// The number of embeddings for each direction.
  int64_t span() const {
    return buckets.value_or(max_distance);
  }
};

/// Returns the rows (2 T - 1) of the embeddings of the distances t - s from
/// T - 1 down to 1 - T.
torch::Tensor rows_of_distances(
    int64_t T,
    const DistanceBuckets& distances,
    torch::Device device);

/// How learned vectors are stored (`RelativeAttentionOptions`).
struct LearnedDistances {
  int64_t left;
  int64_t right;
  bool last_first;
};

/// Returns the products of query t with the vector of the clipped distance
/// s - t, for queries (B, H, T, D) and vectors (left + right + 1, D).
torch::Tensor scores_of_learned(
    const torch::Tensor& queries,
    const torch::Tensor& vectors,
    const LearnedDistances& distances);

/// The vectors of distances in rows and columns, of the last to the first row
/// or column, and the image's size in tokens.
struct ImageDistances {
  /// (2 n - 1, D) for images of n rows, which may be more or less.
  const torch::Tensor& of_rows;
  const torch::Tensor& of_columns;
  int64_t height;
  int64_t width;
};

/// Returns the products of query t with the vectors of its distances to key s
/// in rows and in columns, for queries (B, H, height * width, D).
torch::Tensor scores_of_image(
    const torch::Tensor& queries,
    const ImageDistances& distances);

} // namespace torch_attention::detail
