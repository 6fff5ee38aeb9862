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

  /// Return the sum of x over the processes. After `leave` all processes do the
  /// same with it, so that its gradient is the gradient of each x; after `sum`
  /// each uses it in its own way, and their gradients are summed. `what` names
  /// the exchange in messages.
  torch::Tensor leave(const torch::Tensor& x, const char* what) const;
  torch::Tensor sum(const torch::Tensor& x) const;

  /// Returns the sum of x over the processes that have the same key heads, all
  /// of which do the same with it.
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
