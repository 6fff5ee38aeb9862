#pragma once

#include <nn/modules/partition.h>
#include <torch_attention/distributed/sequence_parallel.h>

#include <cstdint>

namespace torch_attention::distributed {

/// Context parallel attention, in which a process has some of the tokens.
class GroupTokens : public detail::Partition {
 public:
  GroupTokens(const Group& group, const SequenceOptions& sequence);

  bool is_whole() const override {
    return false;
  }
  int64_t num_token_parts() const override {
    return group_->getSize();
  }
  int64_t num_context_parts() const override {
    return sequence_.whole_context() ? 1 : group_->getSize();
  }
  torch::Tensor positions(int64_t T) const override;
  torch::Tensor own_lengths(const torch::Tensor& lengths, int64_t S)
      const override;
  torch::Tensor own_keys(const torch::Tensor& x, int64_t S) const override;
  void check_call(const char* name, const ForwardOptions& call) const override;
  detail::PartitionInput enter(
      const detail::PartitionCall& call) const override;
  detail::PartitionInput enter_cached(
      const detail::PartitionCall& call) const override;
  int64_t longest(int64_t own, torch::Device device) const override;
  torch::Tensor attend(
      const Projected& projected,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const override;
  torch::Tensor attend_to_context(
      const Projected& projected,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const override;
  torch::Tensor attend_to_cache(
      const torch::Tensor& query,
      const detail::CacheView& cache,
      const torch::Tensor& first,
      functional::ScaledDotProductAttentionFuncOptions options) const override;
  torch::Tensor attend_to_context_cache(
      const torch::Tensor& query,
      const KVCache& cache,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const override;
  KVCacheOptions cache_options(const KVCacheOptions& options) const override;
  void check_cache(const char* name, const KVCacheOptions& cache)
      const override;
  const detail::Partition& of_context() const override;

 private:
  Group group_;
  SequenceOptions sequence_;
};

} // namespace torch_attention::distributed
