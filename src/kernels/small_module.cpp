#include <kernels/small_module.h>

#include <cpu/small_module.h>
#include <kernels/attention.h>
#include <kernels/backward_node.h>
#include <kernels/heads.h>
#include <kernels/linear.h>
#include <kernels/plain.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <array>

namespace torch_attention::kernels {

namespace {

/// The number of multiplications beyond which LibTorch's products pay for their
/// calls.
constexpr int64_t kMaxWork = 8192;

/// x, then weight and bias of query, key, value and out.
constexpr size_t kNumTensors = 9;

using ModuleTensors = std::array<const torch::Tensor*, kNumTensors>;

ModuleTensors tensors_of(const ModuleAttention& m) {
  return {
      m.x,
      m.query.weight,
      m.query.bias,
      m.key.weight,
      m.key.bias,
      m.value.weight,
      m.value.bias,
      m.out.weight,
      m.out.bias};
}

ModuleAttention module_of(
    const variable_list& x,
    const ModuleSettings& settings) {
  return {
      &x[0],
      {&x[1], &x[2]},
      {&x[3], &x[4]},
      {&x[5], &x[6]},
      {&x[7], &x[8]},
      settings};
}

int64_t d_out_of(const ModuleAttention& m) {
  return m.out.weight->defined() ? m.out.weight->size(0)
                                 : m.query.weight->size(0);
}

template <typename X>
cpu::SmallModule<X> small_module_of(const ModuleAttention& m) {
  cpu::SmallModule<X> small;
  small.batch_size = m.x->size(0);
  small.num_tokens = m.x->size(1);
  small.d_in = m.x->size(2);
  small.num_heads = m.settings.num_heads;
  small.num_kv_heads = m.settings.num_kv_heads;
  small.head_dim = m.query.weight->size(0) / m.settings.num_heads;
  small.d_out = d_out_of(m);
  small.rule = m.settings.rule;
  small.x = data_of<X>(*m.x);
  const auto projection = [](const LinearTensors& linear) {
    return cpu::Projection<const X*>{
        data_of<X>(*linear.weight), data_of<X>(*linear.bias)};
  };
  small.projections = {
      projection(m.query),
      projection(m.key),
      projection(m.value),
      projection(m.out)};
  return small;
}

/// Calls `fn` with an element of the dtype of `module`.
template <typename Fn>
void with_element(const ModuleAttention& module, const Fn& fn) {
  // NOLINTNEXTLINE(bugprone-branch-clone): of different types
  if (module.x->scalar_type() == torch::kDouble) {
    fn(double());
  } else {
    fn(float());
  }
}

torch::Tensor run_forward(const ModuleAttention& m) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  auto output =
      at::empty({m.x->size(0), m.x->size(1), d_out_of(m)}, m.x->options());
  with_element(m, [&](auto element) {
    using X = decltype(element);
    cpu::forward(small_module_of<X>(m), output.mutable_data_ptr<X>());
  });
  return output;
}

/// Returns the gradients of the tensors that `tensors_of` lists, where they are
/// wanted.
variable_list run_backward(
    const ModuleAttention& m,
    const BackwardRequest& request) {
  variable_list gradients(kNumTensors);
  for (size_t i = 0; i < kNumTensors; ++i) {
    if (request.wanted[i]) {
      const auto& x = request.saved[i];
      gradients[i] = at::empty(x.sizes(), x.options());
    }
  }
  const auto rows = request.grad_output.contiguous();
  with_element(m, [&](auto element) {
    using X = decltype(element);
    const auto write = [&](size_t i) {
      return gradients[i].defined() ? gradients[i].mutable_data_ptr<X>()
                                    : nullptr;
    };
    const auto projection = [&](size_t i) {
      return cpu::Projection<X*>{write(i), write(i + 1)};
    };
    cpu::backward(
        small_module_of<X>(m),
        rows.const_data_ptr<X>(),
        write(0),
        {projection(1), projection(3), projection(5), projection(7)});
  });
  return gradients;
}

/// Computes the module by operators that can be differentiated again.
torch::Tensor by_operators(const ModuleAttention& m) {
  const auto project = [&](const LinearTensors& linear, int64_t heads) {
    return split_heads(
        torch::linear(*m.x, *linear.weight, *linear.bias), heads);
  };
  Attention a;
  a.query = project(m.query, m.settings.num_heads);
  a.key = project(m.key, m.settings.num_kv_heads);
  a.value = project(m.value, m.settings.num_kv_heads);
  a.rule = m.settings.rule;
  const auto context = combine_heads(std::get<0>(reference(a)));
  return m.out.weight->defined()
      ? torch::linear(context, *m.out.weight, *m.out.bias)
      : context;
}

struct SmallModuleBackward {
  static constexpr const char* kName = "SmallModuleBackward";

  ModuleSettings settings;

  variable_list operator()(const BackwardRequest& request) const {
    if (!request.by_operators) {
      return run_backward(module_of(request.saved, settings), request);
    }
    return differentiable_gradients(
        request.saved, request, [&](const variable_list& inputs) {
          return by_operators(module_of(inputs, settings));
        });
  }
};

/// Returns whether weight and bias belong to a layer from `in` to `out`.
bool is_linear(const LinearTensors& linear, int64_t in, int64_t out) {
  return is_linear_layer(*linear.weight, *linear.bias, in) &&
      linear.weight->size(0) == out;
}

/// Returns whether the layers fit each other. Users may have replaced one by
/// one that does not: the operators report this, plain pointers would not.
bool has_matching_sizes(const ModuleAttention& m) {
  const auto in = m.x->size(2);
  const auto features = m.query.weight->size(0);
  const auto heads = m.settings.num_heads;
  const auto kv_features = features / heads * m.settings.num_kv_heads;
  return features % heads == 0 && is_linear(m.query, in, features) &&
      is_linear(m.key, in, kv_features) &&
      is_linear(m.value, in, kv_features) &&
      (!m.out.weight->defined() ||
       is_linear(m.out, features, m.out.weight->size(0)));
}

} // namespace

bool is_small_module(const ModuleAttention& m) {
  // Checks the size first: large inputs leave here, and the products of sizes
  // that follow might overflow.
  if (m.x->numel() == 0 || m.x->numel() > kMaxWork) {
    return false;
  }
  if (!m.settings.rule.is_linear()) {
    return false;
  }
  const auto dtype = m.x->scalar_type();
  if ((dtype != torch::kFloat && dtype != torch::kDouble) || is_traced() ||
      at::autocast::is_autocast_enabled(at::kCPU)) {
    return false;
  }
  for (const auto* x : tensors_of(m)) {
    if (x->defined() &&
        !(x->numel() <= kMaxWork && x->scalar_type() == dtype &&
          x->is_contiguous() && is_plain(*x))) {
      return false;
    }
  }
  return has_matching_sizes(m) &&
      cpu::work_of(small_module_of<float>(m)) <= kMaxWork;
}

torch::Tensor small_module(const ModuleAttention& module) {
  auto output = run_forward(module);
  const auto inputs = tensors_of(module);
  if (is_recorded(inputs)) {
    record_backward(SmallModuleBackward{module.settings}, output, inputs);
  }
  return output;
}

} // namespace torch_attention::kernels
