#pragma once

#include <distributed/communication.h>
#include <nn/modules/head_split.h>
#include <torch_attention/weights/load.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch_attention::distributed {

/// The heads that this process has.
struct HeadPlan {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t first_head = 0;
  int64_t first_kv_head = 0;
  /// The number of processes with the same key heads; these are neighbours.
  int64_t key_copies = 1;
};

/// Divides heads; throws c10::Error if that cannot be done.
HeadPlan plan_heads(
    const char* name,
    int64_t num_heads,
    int64_t num_kv_heads,
    const Group& group);

/// A module's heads, shared by the processes of a group.
class GroupHeads : public detail::HeadSplit,
                   public std::enable_shared_from_this<GroupHeads> {
 public:
  GroupHeads(
      const Group& group,
      const HeadPlan& plan,
      int64_t all_heads,
      bool compares);

  std::function<void()> compare(
      const char* name,
      const torch::Tensor& x,
      const torch::Tensor& context) const override;
  void tell(const char* name, const torch::Tensor& x, const std::string& error)
      const override;
  torch::Tensor enter(const torch::Tensor& x) const override;
  torch::Tensor leave(const torch::Tensor& x) const override;
  torch::Tensor gather(const torch::Tensor& x) const override;
  torch::Tensor sum(const torch::Tensor& x) const override;
  torch::Tensor enter_keys(const torch::Tensor& weight) const override;

  const Group& group() const {
    return group_;
  }

  /// The tensors of the module that are parts, by their keys below it.
  std::vector<WeightShard> parts;

 private:
  Group group_;
  HeadPlan plan_;
  bool compares_;
};

/// Finds `GroupHeads` again from what a module has.
inline const GroupHeads* group_heads_of(const detail::HeadSplitPointer& split) {
  return static_cast<const GroupHeads*>(split.get());
}

} // namespace torch_attention::distributed
