#include <torch_attention/distributed/weights.h>

#include <check.h>
#include <distributed/communication.h>
#include <distributed/find_attention.h>
#include <distributed/group_heads.h>
#include <distributed/weight_parts.h>
#include <error_message.h>
#include <nn/modules/partition.h>
#include <weights/load_by_agreement.h>
#include <weights/plan.h>
#include <weights/save_tensors.h>
#include <weights/select.h>

#include <cstdio>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

namespace torch_attention::distributed {

namespace {

torch::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? torch::Device(torch::kCPU)
                            : parameters.front().device();
}

/// Concatenates the parts x of all processes, several of which may have the
/// same part.
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
  // find_attention needs a mutable module, but nothing is changed.
  auto& changeable = const_cast<torch::nn::Module&>(module); // NOLINT
  for (const auto& found : find_attention(changeable)) {
    found.visit([&](const auto& attention) {
      const auto* heads = dynamic_cast<const GroupHeads*>(
          detail::PartitionAccess::of(attention).get());
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

namespace {

constexpr const char* kSave = "save_weights";

/// Returns the message of the exception that `run` throws, or "".
template <typename Fn>
std::string error_of(const Fn& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error_message(error);
  }
  return "";
}

/// Gathers all tensors, and returns those for whose index `keeps` returns true.
weights::StateDict wholes_of(
    const weights::StateDict& own,
    const std::unordered_map<std::string, WeightShard>& shards,
    const Group& group,
    const std::function<bool(size_t)>& keeps) {
  weights::StateDict wholes;
  size_t tensor = 0;
  for (const auto& item : own) {
    const auto shard = shards.find(item.key());
    const auto whole = shard == shards.end()
        ? item.value()
        : whole_of(item.value(), shard->second, group).cpu();
    if (keeps(tensor++)) {
      wholes.insert(item.key(), whole);
    }
  }
  return wholes;
}

/// Saves one file per process, and an index.
void save_parts(
    const weights::StateDict& own,
    const std::unordered_map<std::string, WeightShard>& shards,
    const std::string& path,
    const Group& group,
    const SaveOptions& options,
    torch::Device device) {
  std::vector<WholeTensor> tensors;
  std::optional<WeightParts> parts;
  int64_t own_series = 1;
  check_all(
      group,
      kSave,
      error_of([&] {
        TORCH_ATTENTION_CHECK(
            !options.layout(),
            "save_weights(\"{}\"): expected no layout beside an index of "
            "several files",
            path);
        for (const auto& item : own) {
          const auto shard = shards.find(item.key());
          const auto& x = item.value();
          const auto numel = shard == shards.end()
              ? x.numel()
              : x.numel() / shard->second.size * shard->second.total;
          const auto dtype = options.dtype() && x.is_floating_point()
              ? *options.dtype()
              : x.scalar_type();
          tensors.push_back(
              {weights::dotted(options.prefix()) + item.key(),
               static_cast<uint64_t>(numel) * c10::elementSize(dtype)});
        }
        parts.emplace(path, tensors, group->getSize());
        own_series = parts->free_series();
      }),
      device);
  // All processes need the same series of names: take that of the first.
  const auto is_first = group->getRank() == 0;
  const auto series =
      all_gather(
          group,
          torch::full(
              {1}, own_series, torch::device(device).dtype(torch::kLong)),
          "the names of files")[0]
          .item<int64_t>();
  const auto of_file = wholes_of(own, shards, group, [&](size_t tensor) {
    return parts->writer(tensor) == group->getRank();
  });
  const auto file = parts->path(group->getRank(), series);
  const auto done_by_all = [&](const std::function<void()>& step) {
    // If communication fails, the index may name the file already: keep it.
    const auto errors = errors_of_all(group, kSave, error_of(step), device);
    if (!errors.empty()) {
      std::remove(file.c_str());
    }
    TORCH_CHECK(errors.empty(), errors);
  };
  done_by_all([&] {
    if (!file.empty()) {
      weights::save_tensors(of_file, file, options);
    }
  });
  done_by_all([&] {
    if (is_first) {
      parts->write_index(series);
    }
  });
}

/// Saves one file, written by process 0.
void save_whole(
    const weights::StateDict& own,
    const std::unordered_map<std::string, WeightShard>& shards,
    const std::string& path,
    const Group& group,
    const SaveOptions& options,
    torch::Device device) {
  const bool writes = group->getRank() == 0;
  const auto wholes =
      wholes_of(own, shards, group, [&](size_t) { return writes; });
  check_all(
      group,
      kSave,
      error_of([&] {
        if (writes) {
          weights::save_tensors(wholes, path, options);
        }
      }),
      device);
}

} // namespace

void save_weights(
    const torch::nn::Module& module,
    const std::string& path,
    const Group& group,
    const SaveOptions& options) {
  const torch::NoGradGuard no_grad;
  check_group(kSave, group);
  std::unordered_map<std::string, WeightShard> shards;
  for (auto& shard : weight_shards(module)) {
    shards.emplace(shard.key, shard);
  }
  // Agree before data is sent, which a process in another operation would not
  // expect.
  check_all(group, kSave, "", device_of(module));
  const auto save = is_path_of_index(path) ? save_parts : save_whole;
  save(
      weights::state_dict(module),
      shards,
      path,
      group,
      options,
      device_of(module));
}

} // namespace torch_attention::distributed
