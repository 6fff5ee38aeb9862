#include <kernels/small_module.h>

#include <cpu/small_module.h>
#include <kernels/attention.h>
#include <kernels/plain.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

namespace torch_attention::kernels {

namespace {

/// Multiplications beyond which LibTorch's products pay for their calls.
constexpr int64_t kMaxWork = 8192;

/// What is not a tensor.
struct Settings : torch::CustomClassHolder {
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;
  double scale = 1.0;
  bool causal = false;
  int64_t window = 0;
};

/// x, then weight and bias of query, key, value and out.
constexpr size_t kNumTensors = 9;

torch::autograd::variable_list tensors_of(const ModuleAttention& m) {
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
    const torch::autograd::variable_list& x,
    const Settings& settings) {
  ModuleAttention m;
  m.x = x[0];
  m.query = {x[1], x[2]};
  m.key = {x[3], x[4]};
  m.value = {x[5], x[6]};
  m.out = {x[7], x[8]};
  m.num_heads = settings.num_heads;
  m.num_kv_heads = settings.num_kv_heads;
  m.scale = settings.scale;
  m.causal = settings.causal;
  m.window = settings.window;
  return m;
}

int64_t d_out_of(const ModuleAttention& m) {
  return m.out.weight.defined() ? m.out.weight.size(0) : m.query.weight.size(0);
}

template <typename X>
const X* read(const torch::Tensor& x) {
  return x.defined() ? static_cast<const X*>(x.const_data_ptr()) : nullptr;
}

template <typename X>
cpu::SmallModule<X> small_module_of(const ModuleAttention& m) {
  cpu::SmallModule<X> small;
  small.batch_size = m.x.size(0);
  small.num_tokens = m.x.size(1);
  small.d_in = m.x.size(2);
  small.num_heads = m.num_heads;
  small.num_kv_heads = m.num_kv_heads;
  small.head_dim = m.query.weight.size(0) / m.num_heads;
  small.d_out = d_out_of(m);
  small.scale = static_cast<X>(m.scale);
  small.causal = m.causal;
  small.window = m.window;
  small.x = read<X>(m.x);
  const auto projection = [](const LinearTensors& linear) {
    return cpu::Projection<const X*>{
        read<X>(linear.weight), read<X>(linear.bias)};
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
  if (module.x.scalar_type() == torch::kDouble) {
    fn(double());
  } else {
    fn(float());
  }
}

torch::Tensor run_forward(const ModuleAttention& m) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  auto output =
      at::empty({m.x.size(0), m.x.size(1), d_out_of(m)}, m.x.options());
  with_element(m, [&](auto element) {
    using X = decltype(element);
    cpu::forward(small_module_of<X>(m), output.mutable_data_ptr<X>());
  });
  return output;
}

/// Gradients of what `tensors_of` lists, where they are needed.
torch::autograd::variable_list run_backward(
    const ModuleAttention& m,
    const torch::autograd::variable_list& tensors,
    const torch::Tensor& grad_output) {
  torch::autograd::variable_list gradients(kNumTensors);
  for (size_t i = 0; i < kNumTensors; ++i) {
    if (tensors[i].defined() && tensors[i].requires_grad()) {
      gradients[i] = at::empty(tensors[i].sizes(), tensors[i].options());
    }
  }
  const auto rows = grad_output.contiguous();
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

/// (B, T, H * D) -> (B, H, T, D)
torch::Tensor split_heads(const torch::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads})
      .transpose(1, 2);
}

/// The same by operators that can be differentiated again.
torch::Tensor by_operators(const ModuleAttention& m) {
  const auto project = [&](const LinearTensors& linear, int64_t heads) {
    return split_heads(torch::linear(m.x, linear.weight, linear.bias), heads);
  };
  Attention a;
  a.query = project(m.query, m.num_heads);
  a.key = project(m.key, m.num_kv_heads);
  a.value = project(m.value, m.num_kv_heads);
  a.causal = m.causal;
  a.window = m.window;
  a.scale = m.scale;
  const auto context =
      std::get<0>(reference(a)).transpose(1, 2).flatten(/*start_dim=*/2);
  return m.out.weight.defined()
      ? torch::linear(context, m.out.weight, m.out.bias)
      : context;
}

torch::autograd::variable_list differentiable_backward(
    const ModuleAttention& m,
    const torch::autograd::variable_list& tensors,
    const torch::Tensor& grad_output) {
  torch::autograd::variable_list inputs;
  for (const auto& x : tensors) {
    if (x.defined() && x.requires_grad()) {
      inputs.push_back(x);
    }
  }
  const auto found = torch::autograd::grad(
      {by_operators(m)},
      inputs,
      {grad_output},
      /*retain_graph=*/true,
      /*create_graph=*/true);
  torch::autograd::variable_list gradients(kNumTensors);
  size_t next = 0;
  for (size_t i = 0; i < kNumTensors; ++i) {
    if (tensors[i].defined() && tensors[i].requires_grad()) {
      gradients[i] = found[next++];
    }
  }
  return gradients;
}

/// LibTorch takes no undefined tensor here.
using OptionalTensor = std::optional<torch::Tensor>;

OptionalTensor optional(const torch::Tensor& x) {
  return x.defined() ? OptionalTensor(x) : std::nullopt;
}

struct SmallModuleFunction : torch::autograd::Function<SmallModuleFunction> {
  static torch::Tensor forward(
      torch::autograd::AutogradContext* context,
      const torch::Tensor& x,
      const torch::Tensor& query_weight,
      const OptionalTensor& query_bias,
      const torch::Tensor& key_weight,
      const OptionalTensor& key_bias,
      const torch::Tensor& value_weight,
      const OptionalTensor& value_bias,
      const OptionalTensor& out_weight,
      const OptionalTensor& out_bias,
      const c10::intrusive_ptr<Settings>& settings) {
    torch::autograd::variable_list tensors = {
        x,
        query_weight,
        query_bias.value_or(torch::Tensor()),
        key_weight,
        key_bias.value_or(torch::Tensor()),
        value_weight,
        value_bias.value_or(torch::Tensor()),
        out_weight.value_or(torch::Tensor()),
        out_bias.value_or(torch::Tensor())};
    auto output = run_forward(module_of(tensors, *settings));
    context->save_for_backward(std::move(tensors));
    context->saved_data["settings"] = c10::IValue::make_capsule(settings);
    return output;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& grad_outputs) {
    const auto tensors = context->get_saved_variables();
    const auto capsule = context->saved_data["settings"].toCapsule();
    const auto module =
        module_of(tensors, static_cast<const Settings&>(*capsule));
    auto gradients = torch::GradMode::is_enabled()
        ? differentiable_backward(module, tensors, grad_outputs[0])
        : run_backward(module, tensors, grad_outputs[0]);
    gradients.emplace_back();
    return gradients;
  }
};

bool is_small(const ModuleAttention& m) {
  // Before the sizes are multiplied, which might overflow.
  const auto fits = [](const torch::Tensor& x) {
    return !x.defined() || x.numel() <= kMaxWork;
  };
  return m.x.numel() > 0 && fits(m.x) && fits(m.query.weight) &&
      fits(m.key.weight) && fits(m.value.weight) && fits(m.out.weight) &&
      cpu::work_of(small_module_of<float>(m)) <= kMaxWork;
}

} // namespace

bool is_small_module(const ModuleAttention& m) {
  const auto dtype = m.x.scalar_type();
  if ((dtype != torch::kFloat && dtype != torch::kDouble) || is_traced() ||
      at::autocast::is_autocast_enabled(at::kCPU)) {
    return false;
  }
  for (const auto& x : tensors_of(m)) {
    if (x.defined() &&
        !(x.scalar_type() == dtype && x.is_contiguous() && is_plain(x))) {
      return false;
    }
  }
  return is_small(m);
}

torch::Tensor small_module(const ModuleAttention& m) {
  const auto tensors = tensors_of(m);
  bool differentiable = false;
  if (torch::GradMode::is_enabled()) {
    for (const auto& x : tensors) {
      differentiable = differentiable || (x.defined() && x.requires_grad());
    }
  }
  if (!differentiable) {
    return run_forward(m);
  }
  const auto settings = c10::make_intrusive<Settings>();
  settings->num_heads = m.num_heads;
  settings->num_kv_heads = m.num_kv_heads;
  settings->scale = m.scale;
  settings->causal = m.causal;
  settings->window = m.window;
  return SmallModuleFunction::apply(
      m.x,
      m.query.weight,
      optional(m.query.bias),
      m.key.weight,
      optional(m.key.bias),
      m.value.weight,
      optional(m.value.bias),
      optional(m.out.weight),
      optional(m.out.bias),
      settings);
}

} // namespace torch_attention::kernels
