#include <distributed/group_heads.h>

#include <kernels/backward_node.h>
#include <kernels/linear.h>

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

/// The gradient of an input that all processes use: the sum of their gradients.
/// Differentiating it again needs a sum with a gradient.
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

/// The gradient of a sum that all processes receive: each gets all of it.
struct LeaveBackward {
  static constexpr const char* kName = "TensorParallelLeaveBackward";

  variable_list operator()(const BackwardRequest& request) const {
    return {request.grad_output};
  }
};

/// The gradient of a concatenation: each process gets its part.
struct GatherBackward {
  static constexpr const char* kName = "TensorParallelGatherBackward";
  int64_t start = 0;
  int64_t size = 0;

  variable_list operator()(const BackwardRequest& request) const {
    return {request.grad_output.narrow(-1, start, size)};
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

/// The gradient of key heads that neighbouring processes share. A single
/// all-reduce over all processes, with a slot for each group of neighbours.
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

/// Returns the properties that have to be equal in all processes.
std::string text_of(const torch::Tensor& input) {
  return input.defined()
      ? c10::str(
            input.scalar_type(),
            " of shape ",
            input.sizes(),
            kernels::is_recorded({&input}) ? " with a gradient" : "")
      : std::string();
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
    : group_(group), plan_(plan), all_heads_(all_heads), compares_(compares) {}

torch::Tensor GroupHeads::own_heads(
    const char* name,
    const char* what,
    const torch::Tensor& x) const {
  if (!x.defined() || x.dim() != 4 || x.size(1) == 1) {
    return x;
  }
  TORCH_CHECK(
      x.size(1) == all_heads_,
      name,
      ": expected a ",
      what,
      " for 1 or all ",
      all_heads_,
      " heads, of which other processes have some, but got one of shape ",
      x.sizes());
  return x.narrow(1, plan_.first_head, plan_.num_heads);
}

void GroupHeads::check_call(const char* name, const ForwardOptions& call)
    const {
  TORCH_CHECK(
      !call.scores(),
      name,
      ": expected no function `scores`, where several processes share the "
      "heads");
}

void GroupHeads::check_together(
    const char* name,
    const torch::Tensor& x,
    bool /*exchanges_length*/,
    c10::function_ref<void()> check) const {
  try {
    check();
  } catch (const c10::Error& error) {
    if (compares_) {
      distributed::compare(
          group_, name, error.what_without_backtrace(), sending_device(x))();
    }
    throw;
  }
}

detail::PartitionInput GroupHeads::enter(
    const char* name,
    const torch::Tensor& x,
    const torch::Tensor& context) const {
  detail::PartitionInput input;
  if (compares_) {
    input.wait = distributed::compare(
        group_,
        name,
        "input " + text_of(x) + (context.defined() ? ", context " : "") +
            text_of(context),
        x.device());
  }
  input.x = enter_weight(x);
  input.context = context.defined() ? enter_weight(context) : context;
  return input;
}

torch::Tensor GroupHeads::enter_weight(const torch::Tensor& weight) const {
  return recorded(EnterBackward{shared_from_this()}, alias_of(weight), weight);
}

torch::Tensor GroupHeads::mean_of_heads(const torch::Tensor& x) const {
  return sum(x) / static_cast<double>(group_->getSize());
}

torch::Tensor GroupHeads::project(
    const torch::Tensor& combined,
    const kernels::LinearLayer& layer,
    Kernel kernel) const {
  const auto own = kernels::linear(combined, layer.weight, {}, kernel);
  const auto result = copy_of(own);
  all_reduce(group_, result, "the sum of outputs");
  const auto sum = recorded(LeaveBackward{}, result, own);
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
      GatherBackward{group_->getRank() * size, size}, result, combined);
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
