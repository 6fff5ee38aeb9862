#pragma once

#include <distributed/communication.h>
#include <nn/modules/partition.h>
#include <torch_attention/weights/load.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch_attention::distributed {

/// The heads of this process.
struct HeadPlan {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t first_head = 0;
  int64_t first_kv_head = 0;
  /// The number of neighbouring processes that have the same key heads.
  int64_t key_copies = 1;
  /// True if projections join results of processes: norms of all heads do.
  bool joins_norms = false;
};

/// Divides heads. Throws c10::Error if that is impossible.
HeadPlan plan_heads(
    const char* name,
    int64_t num_heads,
    int64_t num_kv_heads,
    const Group& group);

/// Tensor parallel attention, in which a process has some of the heads
/// (Shoeybi et al. 2019, "Megatron-LM").
class GroupHeads : public detail::Partition,
                   public std::enable_shared_from_this<GroupHeads> {
 public:
  GroupHeads(
      const Group& group,
      const HeadPlan& plan,
      int64_t all_heads,
      bool compares);

  bool is_whole() const override {
    return false;
  }
  kernels::SharedHeads heads() const override {
    return {plan_.first_head, all_heads_};
  }
  torch::Tensor own_heads(
      const char* name,
      const char* what,
      const torch::Tensor& x) const override;
  void check_call(const char* name, const ForwardOptions& call) const override;
  detail::PartitionInput enter(
      const detail::PartitionCall& call) const override;
  torch::Tensor enter_weight(const torch::Tensor& weight) const override;
  torch::Tensor enter_keys(const torch::Tensor& weight) const override;
  torch::Tensor mean_of_heads(const torch::Tensor& x) const override;
  torch::Tensor gather(const torch::Tensor& combined) const override;
  torch::Tensor project(
      const torch::Tensor& combined,
      const kernels::LinearLayer& layer,
      Kernel kernel) const override;

  const Group& group() const {
    return group_;
  }

  /// Returns the sum of x over the processes, which all use it in the same way:
  /// the gradient of each x is the gradient of the sum. `what` is a part of
  /// messages.
  torch::Tensor leave(const torch::Tensor& x, const char* what) const;

  /// Returns the sum of x over the processes, each of which uses it in its own
  /// way: its gradient is summed, too.
  torch::Tensor sum(const torch::Tensor& x) const;

  /// Returns the sum of x over the processes that have the same key heads,
  /// which use it in the same way.
  torch::Tensor leave_keys(const torch::Tensor& x) const;

  /// The tensors of the module that are split, by their keys relative to it.
  std::vector<WeightShard> parts;

 private:
  Group group_;
  HeadPlan plan_;
  int64_t all_heads_;
  bool compares_;
};

} // namespace torch_attention::distributed
