#include <torch_attention/distributed/weights.h>

#include <distributed/communication.h>
#include <distributed/find_attention.h>
#include <distributed/group_heads.h>
#include <nn/modules/head_split.h>
#include <weights/load_by_agreement.h>
#include <weights/plan.h>
#include <weights/save_tensors.h>

#include <unordered_map>

namespace torch_attention::distributed {

namespace {

torch::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? torch::Device(torch::kCPU)
                            : parameters.front().device();
}

/// Returns the whole of which the processes have parts x, several of which may
/// have the same ones.
torch::Tensor whole_of(
    const torch::Tensor& x,
    const WeightShard& shard,
    const Group& group) {
  const auto all = all_gather(group, x.detach(), "the joining of weights");
  const auto parts = shard.total / shard.size;
  const auto copies = all.size(0) / parts;
  std::vector<torch::Tensor> distinct;
  for (int64_t i = 0; i < parts; ++i) {
    distinct.push_back(all[i * copies]);
  }
  return torch::cat(distinct, shard.dimension);
}

} // namespace

std::vector<WeightShard> weight_shards(const torch::nn::Module& module) {
  std::vector<WeightShard> shards;
  // Nothing is changed.
  auto& changeable = const_cast<torch::nn::Module&>(module); // NOLINT
  for (const auto& found : find_attention(changeable)) {
    found.visit([&](const auto& attention) {
      const auto* heads =
          group_heads_of(detail::HeadSplitAccess::of(attention));
      if (heads == nullptr) {
        return;
      }
      for (const auto& part : heads->parts) {
        shards.push_back(part);
        auto& key = shards.back().key;
        key.insert(0, found.path + (found.path.empty() ? "" : "."));
      }
    });
  }
  return shards;
}

LoadReport load_weights(
    torch::nn::Module& module,
    const std::string& path,
    const Group& group,
    const LoadOptions& options) {
  check_group("load_weights", group);
  auto of_process = options;
  of_process.shards(weight_shards(module));
  return weights::load_by_agreement(
      module,
      path,
      of_process,
      {static_cast<size_t>(group->getRank()),
       static_cast<size_t>(group->getSize())},
      [&](const std::string& error) {
        check_all(group, "load_weights", error, device_of(module));
      });
}

void save_weights(
    const torch::nn::Module& module,
    const std::string& path,
    const Group& group,
    const SaveOptions& options) {
  const torch::NoGradGuard no_grad;
  check_group("save_weights", group);
  std::unordered_map<std::string, WeightShard> shards;
  for (auto& shard : weight_shards(module)) {
    shards.emplace(shard.key, shard);
  }
  const bool writes = group->getRank() == 0;
  weights::StateDict wholes;
  for (const auto& item : weights::state_dict(module)) {
    const auto shard = shards.find(item.key());
    const auto whole = shard == shards.end()
        ? item.value()
        : whole_of(item.value(), shard->second, group).cpu();
    if (writes) {
      wholes.insert(item.key(), whole);
    }
  }
  std::string error;
  if (writes) {
    try {
      weights::save_tensors(wholes, path, options);
    } catch (const c10::Error& wrong) {
      error = wrong.what_without_backtrace();
    }
  }
  check_all(group, "save_weights", error, device_of(module));
}

} // namespace torch_attention::distributed
