#include <torch_attention/distributed/tensor_parallel.h>

#include <check.h>
#include <distributed/find_attention.h>
#include <distributed/group_heads.h>
#include <nn/modules/heads.h>
#include <nn/modules/partition.h>

#include <c10/util/Exception.h>

#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch_attention::distributed {

namespace {

constexpr const char* kTensorParallel = "tensor_parallel";

using detail::PartitionAccess;

void check_norm(const std::optional<HeadNormOptions>& norm) {
  TORCH_CHECK(
      !norm || norm->scope() != HeadNormScope::kAllHeads ||
          norm->kind() != HeadNormKind::kLayer,
      "tensor_parallel: expected no layer norm of all heads together, of "
      "which each process has a part; kRms, and norms of single heads, "
      "can be split");
}

template <typename Impl>
HeadPlan plan_of(const Impl& module, const Group& group) {
  const auto& options = module.options;
  TORCH_CHECK(
      PartitionAccess::of(module)->is_whole(),
      "tensor_parallel: expected a whole module, but got one that was "
      "split before");
  check_norm(options.qk_norm());
  if constexpr (std::is_same_v<Impl, MultiHeadAttentionImpl>) {
    check_norm(options.out_norm());
  }
  auto plan = plan_heads(
      kTensorParallel,
      options.num_heads(),
      detail::num_kv_heads(options),
      group);
  plan.joins_norms = options.qk_norm() &&
      options.qk_norm()->scope() == HeadNormScope::kAllHeads;
  return plan;
}

/// Replaces tensors by their parts, and records which parts these are.
class Splitter {
 public:
  explicit Splitter(GroupHeads& heads) : heads_(heads) {}

  void split(
      const std::string& key,
      torch::Tensor& tensor,
      int64_t dimension,
      int64_t start,
      int64_t size) {
    if (!tensor.defined()) {
      return;
    }
    heads_.parts.push_back(
        {key, dimension, start, size, tensor.size(dimension)});
    tensor.set_data(tensor.detach()
                        .narrow(dimension, start, size)
                        .clone(torch::MemoryFormat::Contiguous));
    // The old gradient has the shape of the whole tensor.
    tensor.mutable_grad() = torch::Tensor();
  }

  /// Restricts a layer to the outputs [start, start + size).
  void split_outputs(
      const std::string& key,
      torch::nn::Linear& linear,
      int64_t start,
      int64_t size) {
    if (linear.is_empty()) {
      return;
    }
    split(key + ".weight", linear->weight, 0, start, size);
    split(key + ".bias", linear->bias, 0, start, size);
    linear->options.out_features(size);
  }

  void split_inputs(
      const std::string& key,
      torch::nn::Linear& linear,
      int64_t start,
      int64_t size) {
    if (linear.is_empty()) {
      return;
    }
    split(key + ".weight", linear->weight, 1, start, size);
    linear->options.in_features(size);
  }

  void split_norm(
      const std::string& key,
      HeadNorm& norm,
      int64_t start,
      int64_t size,
      bool of_keys,
      const detail::PartitionPointer& partition) {
    if (norm.is_empty()) {
      return;
    }
    const auto scope = norm->options.scope();
    if (scope != HeadNormScope::kHead) {
      const auto each = scope == HeadNormScope::kAllHeads ? norm->head_dim : 1;
      split(key + ".weight", norm->weight, 0, start * each, size * each);
      split(key + ".bias", norm->bias, 0, start * each, size * each);
    }
    PartitionAccess::set_norm(*norm, size, of_keys, partition);
  }

 private:
  GroupHeads& heads_;
};

template <typename Impl>
void split_module(
    Impl& module,
    const Group& group,
    const TensorParallelOptions& how) {
  const auto plan = plan_of(module, group);
  auto& options = module.options;
  const auto all_heads = options.num_heads();
  const auto heads =
      std::make_shared<GroupHeads>(group, plan, all_heads, how.compare());
  const auto D = module.head_dim;
  const auto E = detail::value_dim_of(options);
  const auto first = plan.first_head;
  const auto n = plan.num_heads;
  const auto first_kv = plan.first_kv_head;
  const auto n_kv = plan.num_kv_heads;
  Splitter splitter(*heads);
  splitter.split_outputs("W_query", module.W_query, first * D, n * D);
  splitter.split_outputs("W_key", module.W_key, first_kv * D, n_kv * D);
  splitter.split_outputs("W_value", module.W_value, first_kv * E, n_kv * E);
  splitter.split_inputs("out_proj", module.out_proj, first * E, n * E);
  splitter.split_norm("q_norm", module.q_norm, first, n, false, heads);
  splitter.split_norm("k_norm", module.k_norm, first_kv, n_kv, true, heads);
  if constexpr (std::is_same_v<Impl, MultiHeadAttentionImpl>) {
    splitter.split_norm("out_norm", module.out_norm, first, n, false, heads);
    const bool gates_heads = options.output_gate() &&
        options.output_gate()->scope() == GateScope::kHead;
    const auto each = gates_heads ? 1 : E;
    splitter.split_outputs("W_gate", module.W_gate, first * each, n * each);
    splitter.split("sinks", module.sinks, 0, first, n);
  }
  options.num_heads(n).num_kv_heads(n_kv).head_dim(D).value_dim(E);
  if (!options.out_proj()) {
    // Options of out_proj(false) have d_out = num_heads * value_dim, although
    // `forward` returns the outputs of all heads.
    options.d_out(n * E);
  }
  PartitionAccess::of(module) = heads;
}

/// Throws c10::Error if a weight has two owners: it would be split twice, or
/// missed by one that is not attention.
void check_owners(
    torch::nn::Module& module,
    const std::vector<FoundAttention>& found) {
  std::unordered_map<const c10::TensorImpl*, std::string> owners;
  std::unordered_set<const torch::nn::Module*> attention;
  const auto check =
      [](bool fits, const std::string& first, const std::string& second) {
        TORCH_ATTENTION_CHECK(
            fits,
            "tensor_parallel: expected weights of one layer each, but got one "
            "of both {} and {}",
            first,
            second);
      };
  for (const auto& each : found) {
    each.visit([&](auto& owner) {
      attention.insert(&owner);
      for (const auto& parameter : owner.named_parameters()) {
        const auto path =
            each.path + (each.path.empty() ? "" : ".") + parameter.key();
        const auto [other, is_first] =
            owners.emplace(parameter.value().unsafeGetTensorImpl(), path);
        check(is_first, other->second, path);
      }
    });
  }
  visit_modules(module, [&](const std::string& path, torch::nn::Module& each) {
    if (attention.count(&each) != 0) {
      return false;
    }
    for (const auto& parameter : each.named_parameters(/*recurse=*/false)) {
      const auto other = owners.find(parameter.value().unsafeGetTensorImpl());
      if (other != owners.end()) {
        check(false, other->second, path + '.' + parameter.key());
      }
    }
    return true;
  });
}

/// Returns the text that has to be equal in all processes: first the number of
/// modules, then the details, for which a message may lack room.
std::string describe(const std::vector<FoundAttention>& found) {
  std::ostringstream text;
  text.precision(kDigits);
  text << found.size() << " modules";
  for (const auto& each : found) {
    each.visit([&](const auto& module) {
      text << "; " << each.path << (each.path.empty() ? "" : " = ");
      module.pretty_print(text);
      text << " of " << module.W_query->weight.scalar_type();
    });
  }
  return text.str();
}

} // namespace

int64_t tensor_parallel(
    torch::nn::Module& module,
    const Group& group,
    const TensorParallelOptions& options) {
  const torch::NoGradGuard no_grad;
  check_group(kTensorParallel, group);
  const auto found = find_attention(module);
  std::string error;
  try {
    check_owners(module, found);
    for (const auto& each : found) {
      each.visit([&](const auto& attention) { plan_of(attention, group); });
    }
  } catch (const c10::Error& wrong) {
    error = wrong.what_without_backtrace();
  }
  if (options.compare()) {
    // Errors are sent, too, so that the other processes fail as well.
    compare(
        group,
        kTensorParallel,
        error.empty() ? describe(found) : error,
        device_of(found))();
  }
  TORCH_CHECK(error.empty(), error);
  for (const auto& each : found) {
    each.visit(
        [&](auto& attention) { split_module(attention, group, options); });
  }
  return static_cast<int64_t>(found.size());
}

MultiHeadAttention tensor_parallel(
    const MultiHeadAttentionOptions& module_options,
    const Group& group,
    const TensorParallelOptions& options) {
  MultiHeadAttention module(module_options);
  tensor_parallel(*module, group, options);
  return module;
}

CrossAttention tensor_parallel(
    const CrossAttentionOptions& module_options,
    const Group& group,
    const TensorParallelOptions& options) {
  CrossAttention module(module_options);
  tensor_parallel(*module, group, options);
  return module;
}

} // namespace torch_attention::distributed
