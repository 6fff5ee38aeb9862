#include <distributed/group_heads.h>

#include <kernels/backward_node.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <utility>

namespace torch_attention::distributed {

namespace {

using kernels::BackwardRequest;
using kernels::variable_list;
using HeadsPointer = std::shared_ptr<const GroupHeads>;

/// x under another name, which autograd does not know yet.
torch::Tensor alias_of(const torch::Tensor& x) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return x.alias();
}

/// A copy that may be summed in its place.
torch::Tensor copy_of(const torch::Tensor& x) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return x.clone(torch::MemoryFormat::Contiguous);
}

/// The gradient of what enters: a sum, of which the gradient is a sum as well.
struct EnterBackward {
  static constexpr const char* kName = "TensorParallelEnterBackward";
  HeadsPointer heads;

  variable_list operator()(const BackwardRequest& request) const {
    if (request.by_operators) {
      return {heads->sum(request.grad_output)};
    }
    const auto sum = copy_of(request.grad_output);
    all_reduce(heads->group(), sum, "the sum of gradients of inputs");
    return {sum};
  }
};

/// The gradient of a sum that all processes have: each gets all of it.
struct LeaveBackward {
  static constexpr const char* kName = "TensorParallelLeaveBackward";

  variable_list operator()(const BackwardRequest& request) const {
    return {request.grad_output};
  }
};

/// The gradient of what lies side by side: each process gets its part.
struct GatherBackward {
  static constexpr const char* kName = "TensorParallelGatherBackward";
  int64_t start = 0;
  int64_t size = 0;

  variable_list operator()(const BackwardRequest& request) const {
    return {request.grad_output.narrow(-1, start, size)};
  }
};

/// The gradient of a sum that processes use in different ways.
struct SumBackward {
  static constexpr const char* kName = "TensorParallelSumBackward";
  HeadsPointer heads;

  variable_list operator()(const BackwardRequest& request) const {
    return {heads->sum(request.grad_output)};
  }
};

/// The gradient of weights that neighbours have, too. All processes sum, each
/// group of neighbours in a place of its own.
struct EnterKeysBackward {
  static constexpr const char* kName = "TensorParallelEnterKeysBackward";
  HeadsPointer heads;
  int64_t copies = 1;

  variable_list operator()(const BackwardRequest& request) const {
    TORCH_CHECK(
        !request.by_operators,
        "tensor_parallel: gradients of key heads that several processes have "
        "cannot be differentiated again");
    const auto& group = heads->group();
    const auto& own = request.grad_output;
    auto sizes = own.sizes().vec();
    sizes.insert(sizes.begin(), group->getSize() / copies);
    const auto all = at::zeros(sizes, own.options());
    const auto place = all.select(0, group->getRank() / copies);
    place.copy_(own);
    all_reduce(group, all, "the sum of gradients of key heads");
    return {place};
  }
};

template <typename Backward>
torch::Tensor recorded(
    Backward backward,
    const torch::Tensor& result,
    const torch::Tensor& x) {
  if (kernels::is_recorded({&x})) {
    kernels::record_backward(std::move(backward), result, {&x});
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
  TORCH_CHECK(
      num_heads % size == 0,
      name,
      ": expected num_heads divisible by the number of processes, but got "
      "num_heads = ",
      num_heads,
      ", processes = ",
      size);
  TORCH_CHECK(
      num_kv_heads % size == 0 || size % num_kv_heads == 0,
      name,
      ": expected num_kv_heads divisible by the number of processes, or the "
      "reverse, but got num_kv_heads = ",
      num_kv_heads,
      ", processes = ",
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
    : group_(group), plan_(plan), compares_(compares) {
  heads = {plan.first_head, all_heads};
  num_heads = plan.num_heads;
  num_processes = group->getSize();
}

std::function<void()> GroupHeads::compare(
    const char* name,
    const torch::Tensor& x,
    const torch::Tensor& context) const {
  if (!compares_) {
    return [] {};
  }
  const auto text = [](const torch::Tensor& input) {
    return input.defined()
        ? c10::str(
              input.scalar_type(),
              " of shape ",
              input.sizes(),
              kernels::is_recorded({&input}) ? " with a gradient" : "")
        : std::string();
  };
  return distributed::compare(
      group_,
      name,
      "input " + text(x) + (context.defined() ? ", context " : "") +
          text(context),
      x.device());
}

void GroupHeads::tell(
    const char* name,
    const torch::Tensor& x,
    const std::string& error) const {
  if (compares_) {
    distributed::compare(
        group_,
        name,
        error,
        x.defined() ? x.device() : torch::Device(torch::kCPU))();
  }
}

torch::Tensor GroupHeads::enter(const torch::Tensor& x) const {
  return recorded(EnterBackward{shared_from_this()}, alias_of(x), x);
}

torch::Tensor GroupHeads::leave(const torch::Tensor& x) const {
  const auto result = copy_of(x);
  all_reduce(group_, result, "the sum of outputs");
  return recorded(LeaveBackward{}, result, x);
}

torch::Tensor GroupHeads::gather(const torch::Tensor& x) const {
  torch::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    // (P, ..., C)
    result = all_gather(group_, x.detach(), "the joining of outputs")
                 .movedim(0, -2)
                 .flatten(-2);
  }
  const auto size = x.size(-1);
  return recorded(GatherBackward{group_->getRank() * size, size}, result, x);
}

torch::Tensor GroupHeads::sum(const torch::Tensor& x) const {
  const auto result = copy_of(x);
  all_reduce(group_, result, "a sum over all heads");
  return recorded(SumBackward{shared_from_this()}, result, x);
}

torch::Tensor GroupHeads::enter_keys(const torch::Tensor& weight) const {
  return plan_.key_copies == 1
      ? weight
      : recorded(
            EnterKeysBackward{shared_from_this(), plan_.key_copies},
            alias_of(weight),
            weight);
}

} // namespace torch_attention::distributed
