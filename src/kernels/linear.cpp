#include <kernels/linear.h>

#include <cpu/linear.h>
#include <kernels/backward_node.h>
#include <kernels/choice.h>
#include <kernels/plain.h>
#include <kernels/threads.h>
#include <torch_attention/same_bits.h>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mkldnn_linear_backward_input.h>
#include <ATen/ops/mkldnn_linear_backward_weights.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace torch_attention::kernels {

namespace {

/// The number of rows of x, and of multiplications, below which oneDNN's
/// overhead outweighs its speed.
constexpr int64_t kFewRows = 64;
constexpr int64_t kLittleWork = int64_t{1} << 23;

bool is_cpu_of_another_maker() {
#if defined(__x86_64__)
  return !__builtin_cpu_is("intel") && __builtin_cpu_supports("avx2");
#else
  return false;
#endif
}

bool multiplies_float16() {
#if defined(__x86_64__)
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned kAvx512Fp16 = 1U << 23;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAvx512Fp16) != 0;
#else
  return true;
#endif
}

/// Returns whether the processor has instructions for products of this dtype in
/// half precision. Without them LibTorch takes 2 to 20 times as long as for
/// float32.
bool is_multiplied(torch::ScalarType dtype) {
  static const bool float16 = multiplies_float16();
#if defined(__x86_64__)
  const bool bfloat16 = cpu::has_pairs(cpu::instruction_set());
#else
  const bool bfloat16 = true;
#endif
  return dtype == torch::kHalf ? float16 : bfloat16;
}

bool is_half_precision(torch::ScalarType dtype) {
  return dtype == torch::kHalf || dtype == torch::kBFloat16;
}

/// Returns the operator by which torch.compile replaces linear layers. It has
/// no C++ header.
const std::optional<c10::OperatorHandle>& onednn_operator() {
  static const auto found = c10::Dispatcher::singleton().findSchema(
      {"mkldnn::_linear_pointwise", ""});
  return found;
}

torch::Tensor run_forward(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  // "none": no function is applied to the result.
  torch::jit::Stack stack{
      x.contiguous(),
      weight,
      bias.defined() ? c10::IValue(bias) : c10::IValue(),
      std::string("none"),
      c10::List<std::optional<at::Scalar>>(),
      std::string()};
  onednn_operator()->callBoxed(stack);
  return stack.front().toTensor();
}

/// Returns a dense tensor: oneDNN's tensors share no memory with dense ones.
torch::Tensor dense(const torch::Tensor& x) {
  return x.is_mkldnn() ? x.to_dense() : x;
}

struct LinearBackward {
  static constexpr const char* kName = "OnednnLinearBackward";

  variable_list operator()(const BackwardRequest& request) const {
    const auto& x = request.saved[0];
    const auto& weight = request.saved[1];
    if (request.by_operators) {
      return differentiable_gradients(
          request.saved, request, [](const variable_list& inputs) {
            return at::linear(inputs[0], inputs[1], inputs[2]);
          });
    }
    variable_list gradients(3);
    const auto rows =
        request.grad_output.reshape({-1, weight.size(0)}).contiguous();
    const auto grad_output = request.wanted[0] || request.wanted[1]
        ? rows.to_mkldnn()
        : torch::Tensor();
    if (request.wanted[0]) {
      const auto inputs = x.numel() / weight.size(1);
      gradients[0] = dense(at::mkldnn_linear_backward_input(
                               {inputs, weight.size(1)}, grad_output, weight))
                         .view(x.sizes());
    }
    if (request.wanted[1]) {
      const auto inputs = x.reshape({-1, weight.size(1)}).contiguous();
      gradients[1] = dense(std::get<0>(at::mkldnn_linear_backward_weights(
          grad_output, inputs.to_mkldnn(), weight, /*bias_defined=*/false)));
    }
    if (request.wanted[2]) {
      gradients[2] = rows.sum(0);
    }
    return gradients;
  }
};

/// Returns whether LibTorch's float32 products are slower than oneDNN's.
bool is_onednn_faster() {
  static const bool is_faster = is_cpu_of_another_maker() && at::hasMKL();
  return is_faster;
}

/// Returns whether a product has at least `least_rows` rows and kLittleWork
/// multiplications.
bool pays(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    int64_t least_rows = kFewRows) {
  const auto rows = x.numel() / std::max<int64_t>(1, weight.size(-1));
  return rows >= least_rows && rows * weight.numel() >= kLittleWork;
}

/// Returns whether `x`, `weight` and `bias` belong to a layer of this dtype
/// whose memory may be read, outside of traces and autocast.
bool is_plain_layer(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias,
    torch::ScalarType dtype) {
  const auto fits = [&](const torch::Tensor& tensor) {
    return tensor.scalar_type() == dtype && is_plain(tensor);
  };
  return fits(x) && fits(weight) && (!bias.defined() || fits(bias)) &&
      is_linear_layer(weight, bias, x.size(-1)) && !is_traced() &&
      !at::autocast::is_autocast_enabled(at::kCPU);
}

bool is_contiguous_layer(
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  return weight.is_contiguous() && (!bias.defined() || bias.is_contiguous());
}

/// The most rows in float32 that are computed as rows; more are tiles.
constexpr int64_t kMostRowsInFloat = 16;

/// Returns whether tiles of some rows in float32 are faster than LibTorch's
/// products and oneDNN's: measured on Zen 4 alone (0.3 to 1.0 of their time).
bool are_tiles_faster() {
  const auto set = cpu::instruction_set();
  return set >= cpu::InstructionSet::kAvx512 &&
      set <= cpu::InstructionSet::kAmxBf16 && is_onednn_faster();
}

/// The most rows that our kernel, which reads the weight once, computes faster
/// than LibTorch's; 0 for other dtypes.
int64_t most_few_rows(torch::ScalarType dtype) {
  constexpr int64_t kMostRowsInTiles = 64;
  const auto set = cpu::instruction_set();
  if (is_half_precision(dtype) && !is_multiplied(dtype) &&
      set >= cpu::InstructionSet::kAvx2) {
    return set == cpu::InstructionSet::kAvx2 ? 48 : 128;
  }
  switch (dtype) {
    case torch::kFloat:
      return are_tiles_faster() ? kMostRowsInTiles : kMostRowsInFloat;
    case torch::kBFloat16:
      // More by pairs. Tiles are left to LibTorch.
      return set == cpu::InstructionSet::kAvx512Bf16 ||
              set == cpu::InstructionSet::kNeonBf16
          ? 16
          : 4;
    case torch::kHalf:
      return 32;
    default:
      return 0;
  }
}

/// Returns whether a layer has few rows, as in a decode step.
bool has_few_rows(const torch::Tensor& x, const torch::Tensor& weight) {
  // Below this size only LibTorch's overhead can be saved.
  constexpr int64_t kLeastNumbers = 1 << 12;
  constexpr int64_t kLeastOut = 4;
  return weight.numel() >= kLeastNumbers && weight.size(0) >= kLeastOut &&
      x.numel() <= weight.size(1) * most_few_rows(x.scalar_type());
}

/// Returns whether our kernel computes a layer: one of few rows, or with
/// `same_bits` any, without a graph.
bool is_own_layer(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  const auto dtype = x.scalar_type();
  return is_plain_layer(x, weight, bias, dtype) && x.numel() > 0 &&
      weight.numel() > 0 && is_contiguous_layer(weight, bias) &&
      (same_bits() ? dtype == torch::kFloat || is_half_precision(dtype)
                   : has_few_rows(x, weight)) &&
      !is_recorded({&x, &weight, &bias});
}

template <typename X>
std::vector<torch::Tensor> own_linear_by(
    const torch::Tensor& x,
    const std::vector<LinearLayer>& layers) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto contiguous = x.contiguous();
  auto sizes = contiguous.sizes().vec();
  cpu::LinearInput<X> input;
  input.in = sizes.back();
  input.rows = contiguous.numel() / input.in;
  input.data = data_of<X>(contiguous);
  input.in_order = same_bits() ||
      (x.scalar_type() == torch::kFloat && input.rows > kMostRowsInFloat);
  int64_t numbers = 0;
  std::vector<torch::Tensor> outputs;
  std::vector<cpu::LinearLayer<X>> tasks;
  for (const auto& layer : layers) {
    sizes.back() = layer.weight.size(0);
    outputs.push_back(at::empty(sizes, contiguous.options()));
    tasks.push_back(
        {sizes.back(),
         data_of<X>(layer.weight),
         data_of<X>(layer.bias),
         static_cast<X*>(outputs.back().mutable_data_ptr())});
    numbers += layer.weight.numel();
  }
  if (input.in_order) {
    // The rows may be many.
    numbers *= input.rows;
  }
  // Waking the threads for less takes longer than they save.
  constexpr int64_t kManyNumbers = 1 << 18;
  cpu::linear(
      input, tasks, numbers < kManyNumbers ? cpu::Threads() : threads());
  return outputs;
}

std::vector<torch::Tensor> own_linear(
    const torch::Tensor& x,
    const std::vector<LinearLayer>& layers) {
  switch (x.scalar_type()) {
    case torch::kFloat:
      return own_linear_by<float>(x, layers);
    case torch::kBFloat16:
      return own_linear_by<cpu::BFloat16>(x, layers);
    default:
      return own_linear_by<cpu::Float16>(x, layers);
  }
}

/// Returns whether a layer of half precision would be faster in float32.
bool pays_in_float32(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  constexpr int64_t kLeastRows = 32;
  const auto dtype = x.scalar_type();
  return is_half_precision(dtype) && !is_multiplied(dtype) &&
      is_plain_layer(x, weight, bias, dtype) && pays(x, weight, kLeastRows);
}

torch::Tensor wide(const torch::Tensor& tensor) {
  return tensor.defined() ? tensor.to(torch::kFloat) : tensor;
}

/// The gradients of `linear_in_float32`. Tensors are saved in half precision.
struct WideLinearBackward {
  static constexpr const char* kName = "WideLinearBackward";

  variable_list operator()(const BackwardRequest& request) const {
    if (request.by_operators) {
      return LinearBackward()(request);
    }
    auto in_float32 = request;
    in_float32.grad_output = wide(request.grad_output);
    if (request.wanted[0] || request.wanted[1]) {
      for (auto& tensor : in_float32.saved) {
        tensor = wide(tensor);
      }
    }
    const auto& saved = in_float32.saved;
    auto gradients =
        is_onednn_faster() && has_onednn_linear(saved[0], saved[1], saved[2])
        ? LinearBackward()(in_float32)
        : by_products(in_float32);
    for (auto& gradient : gradients) {
      if (gradient.defined()) {
        gradient = gradient.to(request.grad_output.scalar_type());
      }
    }
    return gradients;
  }

 private:
  static variable_list by_products(const BackwardRequest& request) {
    const auto& x = request.saved[0];
    const auto& weight = request.saved[1];
    const auto rows = request.grad_output.reshape({-1, weight.size(0)});
    variable_list gradients(3);
    if (request.wanted[0]) {
      gradients[0] = rows.matmul(weight).view(x.sizes());
    }
    if (request.wanted[1]) {
      gradients[1] = rows.t().matmul(x.reshape({-1, weight.size(1)}));
    }
    if (request.wanted[2]) {
      gradients[2] = rows.sum(0);
    }
    return gradients;
  }
};

torch::Tensor by_libtorch(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  check_device("linear", "weight", weight, x.device());
  check_device("linear", "bias", bias, x.device());
  return at::linear(x, weight, bias);
}

torch::Tensor linear_in_float32(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto input = wide(x).contiguous();
  const auto wide_bias = wide(bias);
  // Converts the weight part by part, in memory that is reused: a large weight
  // as a whole would need new pages.
  constexpr int64_t kPartNumbers = int64_t{1} << 20;
  const auto out = weight.size(0);
  const auto part = std::max<int64_t>(1, kPartNumbers / weight.size(1));
  auto sizes = x.sizes().vec();
  sizes.back() = out;
  const auto output = at::empty(sizes, x.options());
  for (int64_t begin = 0; begin < out; begin += part) {
    const auto n = std::min(part, out - begin);
    const auto of_part = [&](const torch::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, begin, n) : tensor;
    };
    output.narrow(-1, begin, n)
        .copy_(linear(input, wide(of_part(weight)), of_part(wide_bias)));
  }
  return output;
}

/// Computes `linear_in_float32`, recorded if a gradient is wanted.
torch::Tensor recorded_linear_in_float32(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  auto output = linear_in_float32(x, weight, bias);
  const auto inputs = {&x, &weight, &bias};
  if (is_recorded(inputs)) {
    record_backward(WideLinearBackward(), output, inputs);
  }
  return output;
}

} // namespace

bool is_linear_layer(
    const torch::Tensor& weight,
    const torch::Tensor& bias,
    int64_t in) {
  return weight.dim() == 2 && weight.size(1) == in &&
      (!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)));
}

bool has_onednn_linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  return is_plain_layer(x, weight, bias, torch::kFloat) && x.numel() > 0 &&
      weight.numel() > 0 && is_contiguous_layer(weight, bias) &&
      at::globalContext().userEnabledMkldnn() && onednn_operator().has_value();
}

torch::Tensor onednn_linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  auto output = run_forward(x, weight, bias);
  const auto inputs = {&x, &weight, &bias};
  if (is_recorded(inputs)) {
    record_backward(LinearBackward(), output, inputs);
  }
  return output;
}

torch::Tensor linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  if (is_own_layer(x, weight, bias)) {
    return own_linear(x, {{weight, bias}}).front();
  }
  if (pays_in_float32(x, weight, bias)) {
    return recorded_linear_in_float32(x, weight, bias);
  }
  return is_onednn_faster() && weight.dim() == 2 && pays(x, weight) &&
          has_onednn_linear(x, weight, bias)
      ? onednn_linear(x, weight, bias)
      : by_libtorch(x, weight, bias);
}

torch::Tensor linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias,
    Kernel kernel) {
  return resolved(kernel) == Kernel::kReference ? by_libtorch(x, weight, bias)
                                                : linear(x, weight, bias);
}

std::vector<torch::Tensor> linear_each(
    const torch::Tensor& x,
    const std::vector<LinearLayer>& layers,
    Kernel kernel) {
  const auto own = [&](const LinearLayer& layer) {
    return is_own_layer(x, layer.weight, layer.bias);
  };
  if (resolved(kernel) != Kernel::kReference &&
      std::all_of(layers.begin(), layers.end(), own)) {
    return own_linear(x, layers);
  }
  std::vector<torch::Tensor> outputs;
  for (const auto& layer : layers) {
    outputs.push_back(linear(x, layer.weight, layer.bias, kernel));
  }
  return outputs;
}

} // namespace torch_attention::kernels
