#include <distributed/group_heads.h>

#include <check.h>
#include <kernels/backward_node.h>
#include <kernels/linear.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace torch_attention::distributed {

namespace {

using kernels::BackwardRequest;
using kernels::variable_list;
using HeadsPointer = std::shared_ptr<const GroupHeads>;

/// Returns an alias of x without an autograd history.
torch::Tensor alias_of(const torch::Tensor& x) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return x.alias();
}

/// Returns a copy that may be summed in place.
torch::Tensor copy_of(const torch::Tensor& x) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return x.clone(torch::MemoryFormat::Contiguous);
}

// Each backward pass calls functions of GroupHeads, so that it can be
// differentiated again.

/// The gradient of an input that all processes use: the sum of their gradients.
struct EnterBackward {
  static constexpr const char* kName = "TensorParallelEnterBackward";
  HeadsPointer heads;

  variable_list operator()(const BackwardRequest& request) const {
    return {
        heads->leave(request.grad_output, "the sum of gradients of inputs")};
  }
};

/// The gradient of a sum that all processes receive: each gets all of it.
struct LeaveBackward {
  static constexpr const char* kName = "TensorParallelLeaveBackward";
  HeadsPointer heads;

  variable_list operator()(const BackwardRequest& request) const {
    return {heads->enter_weight(request.grad_output)};
  }
};

/// The gradient of a concatenation: each process gets its part.
struct GatherBackward {
  static constexpr const char* kName = "TensorParallelGatherBackward";
  HeadsPointer heads;
  int64_t start = 0;
  int64_t size = 0;

  variable_list operator()(const BackwardRequest& request) const {
    return {heads->enter_weight(request.grad_output).narrow(-1, start, size)};
  }
};

/// The gradient of a sum that processes use in different ways: a sum as well.
struct SumBackward {
  static constexpr const char* kName = "TensorParallelSumBackward";
  HeadsPointer heads;

  variable_list operator()(const BackwardRequest& request) const {
    return {heads->sum(request.grad_output)};
  }
};

/// The gradient of key heads that neighbouring processes share.
struct EnterKeysBackward {
  static constexpr const char* kName = "TensorParallelEnterKeysBackward";
  HeadsPointer heads;

  variable_list operator()(const BackwardRequest& request) const {
    return {heads->leave_keys(request.grad_output)};
  }
};

struct LeaveKeysBackward {
  static constexpr const char* kName = "TensorParallelLeaveKeysBackward";
  HeadsPointer heads;

  variable_list operator()(const BackwardRequest& request) const {
    return {heads->enter_keys(request.grad_output)};
  }
};

/// Returns `result`, a linear function of x.
template <typename Backward>
torch::Tensor recorded(
    Backward backward,
    const torch::Tensor& result,
    const torch::Tensor& x) {
  if (kernels::is_recorded({&x})) {
    kernels::record_linear(std::move(backward), result, x);
  }
  return result;
}

} // namespace

HeadPlan plan_heads(
    const char* name,
    int64_t num_heads,
    int64_t num_kv_heads,
    const Group& group) {
  const int64_t size = group->getSize();
  const int64_t rank = group->getRank();
  TORCH_ATTENTION_CHECK(
      num_heads % size == 0,
      "{}: expected num_heads divisible by the number of processes, but "
      "got num_heads = {}, processes = {}",
      name,
      num_heads,
      size);
  TORCH_ATTENTION_CHECK(
      num_kv_heads % size == 0 || size % num_kv_heads == 0,
      "{}: expected num_kv_heads divisible by the number of processes, "
      "or the reverse, but got num_kv_heads = {}, processes = {}",
      name,
      num_kv_heads,
      size);
  HeadPlan plan;
  plan.num_heads = num_heads / size;
  plan.first_head = rank * plan.num_heads;
  plan.key_copies = num_kv_heads % size == 0 ? 1 : size / num_kv_heads;
  plan.num_kv_heads = num_kv_heads * plan.key_copies / size;
  plan.first_kv_head = rank / plan.key_copies * plan.num_kv_heads;
  return plan;
}

GroupHeads::GroupHeads(
    const Group& group,
    const HeadPlan& plan,
    int64_t all_heads,
    bool compares)
    : group_(group), plan_(plan), all_heads_(all_heads), compares_(compares) {}

torch::Tensor GroupHeads::own_heads(
    const char* name,
    const char* what,
    const torch::Tensor& x) const {
  if (!x.defined()) {
    return x;
  }
  const auto of_all = enter_weight(x);
  if (x.dim() != 4 || x.size(1) == 1) {
    return of_all;
  }
  TORCH_ATTENTION_CHECK(
      x.size(1) == all_heads_,
      "{}: expected a {} for 1 or all {} heads, of which other processes "
      "have some, but got one of shape {}",
      name,
      what,
      all_heads_,
      x.sizes());
  return of_all.narrow(1, plan_.first_head, plan_.num_heads);
}

void GroupHeads::check_call(const char* name, const ForwardOptions& call)
    const {
  TORCH_ATTENTION_CHECK(
      !call.scores() && !call.block_mask().defined(),
      "{}: expected no {}, where several processes share the heads",
      name,
      call.scores() ? "function `scores`" : "block_mask");
}

detail::PartitionInput GroupHeads::enter(
    const detail::PartitionCall& call) const {
  detail::PartitionInput input;
  if (compares_) {
    check_and_send(group_, call.name, call.x, call.check);
    input.wait =
        compare(group_, call.name, detail::describe(call), call.x.device());
  } else {
    call.check();
  }
  if (plan_.joins_norms) {
    input.wait();
    input.wait = [] {};
  }
  input.x = enter_weight(call.x);
  const auto enter_if_defined = [&](const torch::Tensor& x) {
    return x.defined() ? enter_weight(x) : x;
  };
  input.context = enter_if_defined(call.context);
  input.value_input = enter_if_defined(call.value_input);
  return input;
}

torch::Tensor GroupHeads::enter_weight(const torch::Tensor& weight) const {
  return kernels::is_recorded({&weight})
      ? recorded(EnterBackward{shared_from_this()}, alias_of(weight), weight)
      : weight;
}

torch::Tensor GroupHeads::leave(const torch::Tensor& x, const char* what)
    const {
  const auto result = copy_of(x);
  all_reduce(group_, result, what);
  return recorded(LeaveBackward{shared_from_this()}, result, x);
}

torch::Tensor GroupHeads::sum(const torch::Tensor& x) const {
  const auto result = copy_of(x);
  all_reduce(group_, result, "a sum over all heads");
  return recorded(SumBackward{shared_from_this()}, result, x);
}

torch::Tensor GroupHeads::mean_of_heads(const torch::Tensor& x) const {
  return sum(x) / static_cast<double>(group_->getSize());
}

torch::Tensor GroupHeads::project(
    const torch::Tensor& combined,
    const kernels::LinearLayer& layer,
    Kernel kernel) const {
  const auto sum = leave(
      kernels::linear(combined, layer.weight, {}, kernel),
      "the sum of outputs");
  // Under autocast, linear casts the bias to the dtype of the products, too.
  return layer.bias.defined() ? sum + layer.bias.to(sum.scalar_type()) : sum;
}

torch::Tensor GroupHeads::gather(const torch::Tensor& combined) const {
  torch::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    // (P, ..., C)
    result = all_gather(group_, combined.detach(), "the joining of outputs")
                 .movedim(0, -2)
                 .flatten(-2);
  }
  const auto size = combined.size(-1);
  return recorded(
      GatherBackward{shared_from_this(), group_->getRank() * size, size},
      result,
      combined);
}

torch::Tensor GroupHeads::enter_keys(const torch::Tensor& weight) const {
  return plan_.key_copies > 1 && kernels::is_recorded({&weight})
      ? recorded(
            EnterKeysBackward{shared_from_this()}, alias_of(weight), weight)
      : weight;
}

torch::Tensor GroupHeads::leave_keys(const torch::Tensor& x) const {
  torch::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    // All processes sum, each group of neighbours in a place of its own.
    auto sizes = x.sizes().vec();
    sizes.insert(sizes.begin(), group_->getSize() / plan_.key_copies);
    const auto all = at::zeros(sizes, x.options());
    result = all.select(0, group_->getRank() / plan_.key_copies);
    result.copy_(x);
    all_reduce(group_, all, "the sum of gradients of key heads");
  }
  return recorded(LeaveKeysBackward{shared_from_this()}, result, x);
}

} // namespace torch_attention::distributed
