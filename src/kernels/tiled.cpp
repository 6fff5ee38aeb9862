#include <kernels/attention.h>

#include <cpu/attention.h>
#include <kernels/heads.h>
#include <kernels/plain.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <mutex>

namespace torch_attention::kernels {

namespace {

/// What the kernels read: (B, H, T, D) and so on with contiguous rows, none
/// expanded where the kernels can do without. Masks and bias (B, H, T, S).
struct Operands {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  torch::Tensor mask;
  torch::Tensor bias;
  torch::Tensor key_lengths;
  torch::Tensor query_offsets;
};

/// What is not a tensor.
struct Settings : torch::CustomClassHolder {
  double scale = 1.0;
  bool causal = false;
  int64_t window = 0;
  double dropout = 0.0;
  uint64_t dropout_seed = 0;
};

/// Calls `fn` with an element of the kernels' type for `dtype`.
template <typename Fn>
void with_element(torch::ScalarType dtype, const Fn& fn) {
  switch (dtype) {
    // NOLINTNEXTLINE(bugprone-branch-clone): of different types
    case torch::kFloat:
      return fn(float());
    case torch::kDouble:
      return fn(double());
    case torch::kBFloat16:
      return fn(cpu::BFloat16());
    case torch::kHalf:
      return fn(cpu::Float16());
    default:
      TORCH_INTERNAL_ASSERT(false, "no kernel for ", dtype);
  }
}

torch::ScalarType compute_dtype(torch::ScalarType dtype) {
  return dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
}

/// The rows, which the kernels read as they lie in memory, contiguous.
torch::Tensor with_contiguous_rows(const torch::Tensor& x) {
  return x.size(-1) == 1 || x.stride(-1) == 1 ? x : x.contiguous();
}

/// (B, heads, T, D) as the projection after attention wants it in memory: (B,
/// T, heads, D).
torch::Tensor empty_heads(
    const torch::Tensor& like,
    int64_t heads,
    int64_t tokens,
    int64_t head_dim) {
  return at::empty({like.size(0), tokens, heads, head_dim}, like.options())
      .transpose(1, 2);
}

cpu::Strides strides_of(const torch::Tensor& x) {
  return {x.stride(0), x.stride(1), x.stride(2)};
}

template <typename X>
cpu::Heads<const X> read(const torch::Tensor& x) {
  return {static_cast<const X*>(x.const_data_ptr()), strides_of(x)};
}

template <typename X>
cpu::Heads<X> write(const torch::Tensor& x) {
  return {static_cast<X*>(x.mutable_data_ptr()), strides_of(x)};
}

template <typename X>
cpu::Scores<X> read_scores(const torch::Tensor& x) {
  if (!x.defined()) {
    return {};
  }
  return {
      static_cast<const X*>(x.const_data_ptr()),
      x.stride(0),
      x.stride(1),
      x.stride(2),
      x.stride(3)};
}

const int64_t* read_counts(const torch::Tensor& x) {
  return x.defined() ? x.const_data_ptr<int64_t>() : nullptr;
}

template <typename X>
cpu::AttentionArguments<X> arguments_of(
    const Operands& operands,
    const Settings& settings) {
  const auto& [query, key, value, mask, bias, lengths, offsets] = operands;
  cpu::AttentionArguments<X> a;
  a.batch_size = query.size(0);
  a.num_heads = query.size(1);
  a.num_kv_heads = key.size(1);
  a.num_queries = query.size(2);
  a.num_keys = key.size(2);
  a.head_dim = query.size(3);
  a.value_dim = value.size(3);
  a.query = read<X>(query);
  a.key = read<X>(key);
  a.value = read<X>(value);
  a.scale = settings.scale;
  a.causal = settings.causal;
  a.window = settings.window;
  a.query_offsets = read_counts(offsets);
  a.key_lengths = read_counts(lengths);
  a.bias = read_scores<X>(bias);
  a.mask = read_scores<bool>(mask);
  a.dropout = settings.dropout;
  a.dropout_seed = settings.dropout_seed;
  return a;
}

/// LibTorch's threads.
cpu::Threads threads() {
  cpu::Threads threads;
  // Inside a parallel region there are none to be had.
  threads.count = at::in_parallel_region() ? 1 : at::get_num_threads();
  threads.parallel_for = [](int64_t n, const std::function<void(int64_t)>& fn) {
    at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
      for (auto i = begin; i < end; ++i) {
        fn(i);
      }
    });
  };
  return threads;
}

/// Output (B, H, T, Dv) and, if asked for, logsumexp (B, H, T).
std::tuple<torch::Tensor, torch::Tensor> run_forward(
    const Operands& operands,
    const Settings& settings,
    bool with_logsumexp) {
  // What is allocated here is nobody's view.
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto& query = operands.query;
  const auto output =
      empty_heads(query, query.size(1), query.size(2), operands.value.size(3));
  torch::Tensor logsumexp;
  if (with_logsumexp) {
    logsumexp = at::empty(
        {query.size(0), query.size(1), query.size(2)},
        query.options().dtype(compute_dtype(query.scalar_type())));
  }
  with_element(query.scalar_type(), [&](auto element) {
    using X = decltype(element);
    cpu::forward(
        arguments_of<X>(operands, settings),
        write<X>(output),
        with_logsumexp
            ? static_cast<cpu::Compute<X>*>(logsumexp.mutable_data_ptr())
            : nullptr,
        threads());
  });
  return {output, logsumexp};
}

/// The gradients of query, key and value.
torch::autograd::variable_list run_backward(
    const Operands& operands,
    const Settings& settings,
    const torch::Tensor& output,
    const torch::Tensor& logsumexp,
    const torch::Tensor& grad_output) {
  const auto gradient_of = [](const torch::Tensor& x) {
    return empty_heads(x, x.size(1), x.size(2), x.size(3));
  };
  const auto grad_query = gradient_of(operands.query);
  const auto grad_key = gradient_of(operands.key);
  const auto grad_value = gradient_of(operands.value);
  const auto grad_rows = with_contiguous_rows(grad_output);
  with_element(operands.query.scalar_type(), [&](auto element) {
    using X = decltype(element);
    cpu::BackwardArguments<X> gradients;
    gradients.output = read<X>(output);
    gradients.logsumexp =
        static_cast<const cpu::Compute<X>*>(logsumexp.const_data_ptr());
    gradients.grad_output = read<X>(grad_rows);
    gradients.grad_query = write<X>(grad_query);
    gradients.grad_key = write<X>(grad_key);
    gradients.grad_value = write<X>(grad_value);
    cpu::backward(arguments_of<X>(operands, settings), gradients, threads());
  });
  return {grad_query, grad_key, grad_value};
}

/// What `operands` and `settings` ask for, for another kernel.
Attention attention_of(const Operands& operands, const Settings& settings) {
  Attention a;
  a.query = operands.query;
  a.key = operands.key;
  a.value = operands.value;
  a.causal = settings.causal;
  a.window = settings.window;
  a.key_lengths = operands.key_lengths;
  a.query_offsets = operands.query_offsets;
  a.mask = operands.mask;
  a.bias = operands.bias;
  a.scale = settings.scale;
  return a;
}

/// The gradients as functions that can be differentiated again: those of the
/// reference kernel.
torch::autograd::variable_list differentiable_backward(
    const Operands& operands,
    const Settings& settings,
    const torch::Tensor& grad_output) {
  TORCH_CHECK(
      settings.dropout == 0,
      "scaled_dot_product_attention: with dropout, Kernel::kFused has no "
      "gradient of its gradient (create_graph); use Kernel::kReference");
  const auto output = std::get<0>(reference(attention_of(operands, settings)));
  torch::autograd::variable_list all = {
      operands.query, operands.key, operands.value};
  torch::autograd::variable_list inputs;
  for (const auto& x : all) {
    if (x.requires_grad()) {
      inputs.push_back(x);
    }
  }
  const auto found = torch::autograd::grad(
      {output},
      inputs,
      {grad_output},
      /*retain_graph=*/true,
      /*create_graph=*/true);
  size_t next = 0;
  for (auto& x : all) {
    x = x.requires_grad() ? found[next++] : torch::Tensor();
  }
  return all;
}

struct TiledFunction : torch::autograd::Function<TiledFunction> {
  static torch::Tensor forward(
      torch::autograd::AutogradContext* context,
      const torch::Tensor& query,
      const torch::Tensor& key,
      const torch::Tensor& value,
      Operands operands,
      const c10::intrusive_ptr<Settings>& settings) {
    operands.query = query;
    operands.key = key;
    operands.value = value;
    const auto [output, logsumexp] =
        run_forward(operands, *settings, /*with_logsumexp=*/true);
    context->save_for_backward(
        {query,
         key,
         value,
         operands.mask,
         operands.bias,
         operands.key_lengths,
         operands.query_offsets,
         output,
         logsumexp});
    context->saved_data["settings"] = c10::IValue::make_capsule(settings);
    return output;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& grad_outputs) {
    const auto x = context->get_saved_variables();
    const Operands operands{x[0], x[1], x[2], x[3], x[4], x[5], x[6]};
    const auto capsule = context->saved_data["settings"].toCapsule();
    const auto& settings = static_cast<const Settings&>(*capsule);
    const auto& grad_output = grad_outputs[0];
    auto gradients = torch::GradMode::is_enabled()
        ? differentiable_backward(operands, settings, grad_output)
        : run_backward(operands, settings, x[7], x[8], grad_output);
    gradients.resize(5);
    return gradients;
  }
};

Operands operands_of(const Attention& a) {
  auto query = to_rank_4(a.query);
  auto key = to_rank_4(a.key);
  auto value = to_rank_4(a.value);
  if (at::autocast::is_autocast_enabled(at::kCPU)) {
    const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
    query = at::autocast::cached_cast(dtype, query, at::kCPU);
    key = at::autocast::cached_cast(dtype, key, at::kCPU);
    value = at::autocast::cached_cast(dtype, value, at::kCPU);
  }
  Operands operands;
  operands.query = with_contiguous_rows(query);
  operands.key = with_contiguous_rows(key);
  operands.value = with_contiguous_rows(value);
  const std::vector<int64_t> scores = {
      query.size(0), query.size(1), query.size(2), key.size(2)};
  if (a.mask.defined()) {
    operands.mask = scores_to_rank_4(a.mask, a.query).expand(scores);
  }
  if (a.bias.defined()) {
    operands.bias = scores_to_rank_4(a.bias.to(query.scalar_type()), a.query)
                        .expand(scores);
  }
  // The kernels count on the CPU, one number after the other.
  if (a.key_lengths.defined()) {
    operands.key_lengths = a.key_lengths.contiguous();
  }
  if (a.query_offsets.defined()) {
    operands.query_offsets = a.query_offsets.contiguous();
  }
  return operands;
}

uint64_t draw_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

} // namespace

bool is_tiled(const Attention& a) {
  const auto& query = a.query;
  switch (query.scalar_type()) {
    case torch::kFloat:
    case torch::kDouble:
    case torch::kBFloat16:
    case torch::kHalf:
      break;
    default:
      return false;
  }
  if (!is_plain(query) || !is_plain(a.key) || !is_plain(a.value) ||
      is_traced()) {
    return false;
  }
  return !(
      a.bias.defined() && a.bias.requires_grad() &&
      torch::GradMode::is_enabled());
}

torch::Tensor tiled(const Attention& attention) {
  const auto operands = operands_of(attention);
  const auto settings = c10::make_intrusive<Settings>();
  settings->scale = attention.scale.value_or(
      1 / std::sqrt(static_cast<double>(attention.query.size(-1))));
  settings->causal = attention.causal;
  settings->window = attention.window;
  settings->dropout = attention.dropout;
  if (attention.dropout > 0) {
    settings->dropout_seed = draw_seed();
  }
  const bool differentiable = torch::GradMode::is_enabled() &&
      (operands.query.requires_grad() || operands.key.requires_grad() ||
       operands.value.requires_grad());
  const auto output = differentiable
      ? TiledFunction::apply(
            operands.query, operands.key, operands.value, operands, settings)
      : std::get<0>(run_forward(operands, *settings, /*with_logsumexp=*/false));
  const auto& query = attention.query;
  if (query.dim() == 4) {
    return output;
  }
  auto sizes = query.sizes().vec();
  sizes.back() = attention.value.size(-1);
  return output.reshape(sizes);
}

} // namespace torch_attention::kernels
