#pragma once

#include <device/log.h>

#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

/// The sequences in the tensors that the attention operators take.
namespace torch_attention::testing {

/// Tensors (B, tokens, heads, D) have one sequence in each entry. Packed
/// sequences follow each other in tensors (tokens, heads, D).
class TokenRows {
 public:
  /// Sequences of a batch of `count` entries, with `tokens` each.
  TokenRows(int64_t count, int64_t tokens);

  /// Packed sequences. `starts` is int32 (B + 1), `used` undefined or int32
  /// (B), both on the device; `used` has the lengths, or else they end where
  /// the next one begins.
  TokenRows(const torch::Tensor& starts, const torch::Tensor& used);

  int64_t count() const {
    return static_cast<int64_t>(lengths_.size());
  }
  int64_t longest() const;
  int64_t length(int64_t i) const {
    return lengths_[static_cast<size_t>(i)];
  }

  /// Returns the view (tokens, heads, D) of sequence i in `x`.
  torch::Tensor of(const torch::Tensor& x, int64_t i) const;

  /// Returns the view (heads, tokens) of sequence i in x, (B, heads, tokens) or
  /// (heads, tokens).
  torch::Tensor of_logsumexp(const torch::Tensor& x, int64_t i) const;

 private:
  bool packed_;
  std::vector<int64_t> first_;
  std::vector<int64_t> lengths_;
};

/// Returns a copy of `x` in float64 on the CPU.
torch::Tensor to_double(const torch::Tensor& x);

/// Returns a tensor of NaN in float64 on the CPU: memory that a kernel has not
/// written.
torch::Tensor unwritten(torch::IntArrayRef sizes);

/// Returns `x` in the memory and dtype of the device.
torch::Tensor to_device(const torch::Tensor& x, torch::ScalarType dtype);

/// Throws unless `condition`, as `expected` says.
void require(bool condition, const char* op, const std::string& expected);

/// Throws unless x is on the device, strided, with rows that are contiguous.
void require_rows(const char* op, const char* what, const torch::Tensor& x);

/// Throws unless x is int32 (size), contiguous and on the device.
void require_counts(
    const char* op,
    const char* what,
    const torch::Tensor& x,
    int64_t size);

} // namespace torch_attention::testing
