#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/head_norm.h>

#include <cstdint>
#include <iosfwd>
#include <memory>

namespace torch_attention {

namespace detail {
class Partition;
struct PartitionAccess;
} // namespace detail

/// Root mean square or layer norm of the heads of queries or keys, computed in
/// float32 for half precision: `q_norm` and `k_norm` of `MultiHeadAttention`
/// and `CrossAttention`.
///
/// Example:
/// ```
/// HeadNorm norm(/*num_heads=*/12, /*head_dim=*/64);
/// auto queries = norm(torch::rand({2, 12, 6, 64})); // the same shape
/// ```
class TORCH_ATTENTION_API HeadNormImpl
    : public torch::nn::Cloneable<HeadNormImpl> {
 public:
  HeadNormImpl(
      int64_t num_heads_,
      int64_t head_dim_,
      const HeadNormOptions& options_ = HeadNormOptions());

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (B, H, T, D) -> the same shape and dtype.
  /// Throws c10::Error if H is not `num_heads` or D is not `head_dim`.
  torch::Tensor forward(const torch::Tensor& x);

  /// The options with which this `Module` was constructed.
  HeadNormOptions options;

  int64_t num_heads = 0;
  int64_t head_dim = 0;

  /// (D), (H, D) or (H * D); undefined for `weight(false)`.
  torch::Tensor weight;
  /// Has the weight's shape; undefined for `bias(false)`.
  torch::Tensor bias;

 private:
  friend detail::PartitionAccess;

  /// Which heads this process computes; all by default.
  std::shared_ptr<const detail::Partition> partition_;
  bool of_keys_ = false;
};

/// A `ModuleHolder` for `HeadNormImpl`.
TORCH_MODULE(HeadNorm);

} // namespace torch_attention
