// Replaces aten::_scaled_dot_product_flash_attention_for_cpu and its backward
// pass, which LibTorch's definition of attention and compiled programs call.
//
// LibTorch has a kernel for the key CPU. Ours are registered for the key
// BackendSelect, which the dispatcher handles just before the keys of devices
// and after autograd, wrappers and modes, so nothing is overridden.

#include <kernels/elements.h>
#include <kernels/tiled.h>
#include <operators/replace_sdpa_switch.h>
#include <operators/sdpa_attention.h>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>

namespace torch_attention::operators {

namespace {

using kernels::Attention;

/// Returns the attention as kernels read it, or nothing if LibTorch has to
/// compute it. Disables autocast, which LibTorch's kernel ignores as well.
std::optional<Attention> prepared_flash(const SdpaArguments& x) {
  check_devices(x);
  if (!is_readable(x)) {
    return std::nullopt;
  }
  const auto a = attention_of_flash(x);
  if (!a) {
    return std::nullopt;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  return kernels::prepared(*a);
}

/// Calls `fn` with a zero of the type of the statistics.
template <typename Fn>
void with_statistics_dtype(const torch::Tensor& x, const Fn& fn) {
  // NOLINTNEXTLINE(bugprone-branch-clone): of different types
  if (x.scalar_type() == torch::kDouble) {
    fn(double());
  } else {
    fn(float());
  }
}

/// Returns the log-sum-exp of each row (B, H, T), with the strides of (B, T, H)
/// as from LibTorch's kernel; 0 for a row that sees no key.
torch::Tensor logsumexp_of(const torch::Tensor& statistics) {
  const auto B = statistics.size(1);
  const auto H = statistics.size(2);
  const auto T = statistics.size(3);
  const auto result = at::empty({B, T, H}, statistics.options());
  with_statistics_dtype(statistics, [&](auto zero) {
    using X = decltype(zero);
    const auto* maximum = statistics.const_data_ptr<X>();
    const auto* sum = maximum + statistics.numel() / 2;
    auto* out = result.template mutable_data_ptr<X>();
    at::parallel_for(0, B * T, 1024, [&](int64_t begin, int64_t end) {
      for (auto row = begin; row < end; ++row) {
        for (int64_t h = 0; h < H; ++h) {
          const auto i = (row / T * H + h) * T + row % T;
          out[row * H + h] = sum[i] > 0 || std::isnan(sum[i])
              ? maximum[i] + std::log(sum[i])
              : zero;
        }
      }
    });
  });
  return result.transpose(1, 2);
}

/// Returns statistics (2, B, H, T) with these log-sum-exps as maxima and with
/// sums of 1. Undefined if one is so large that rounding loses the number of
/// keys in it, as in a row whose mask is the lowest finite number for all keys.
torch::Tensor statistics_of(const torch::Tensor& logsumexp) {
  constexpr double kMost = 1e4;
  auto statistics = at::empty(
      {2, logsumexp.size(0), logsumexp.size(1), logsumexp.size(2)},
      logsumexp.options());
  auto maximum = statistics[0];
  maximum.copy_(logsumexp);
  statistics[1].fill_(1);
  bool tells = true;
  with_statistics_dtype(statistics, [&](auto zero) {
    using X = decltype(zero);
    const auto* numbers = statistics.const_data_ptr<X>();
    const auto count = statistics.numel() / 2;
    for (int64_t i = 0; i < count && tells; ++i) {
      tells = !(std::abs(numbers[i]) > kMost);
    }
  });
  return tells ? statistics : torch::Tensor();
}

std::tuple<torch::Tensor, torch::Tensor> flash_attention(
    c10::DispatchKeySet keys,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    double dropout,
    bool causal,
    const std::optional<torch::Tensor>& mask,
    std::optional<double> scale) {
  if (is_switched_on()) {
    const auto a =
        prepared_flash({query, key, value, mask, dropout, causal, scale});
    count_call(a.has_value());
    if (a) {
      // Below autograd, which calls with gradients enabled.
      const auto results = kernels::run_forward(
          *a,
          /*dropout_seed=*/0,
          c10::GradMode::is_enabled() ? kernels::Statistics::kForBackward
                                      : kernels::Statistics::kAlone,
          layout_of_flash());
      return {results.output, logsumexp_of(results.statistics)};
    }
  }
  return at::_ops::_scaled_dot_product_flash_attention_for_cpu::redispatch(
      after_ours(keys), query, key, value, dropout, causal, mask, scale);
}

/// Returns whether the results of the forward pass have the shapes, dtypes and
/// strides that our forward pass returns.
bool are_results(
    const Attention& a,
    const torch::Tensor& grad_output,
    const torch::Tensor& output,
    const torch::Tensor& logsumexp) {
  const auto& query = a.query;
  const auto dtype = query.scalar_type();
  const auto wide = kernels::compute_dtype(dtype);
  for (const auto* x : {&grad_output, &output}) {
    if (!has_memory(*x) || x->scalar_type() != dtype ||
        x->sizes() != query.sizes()) {
      return false;
    }
  }
  return output.stride(-1) == 1 && has_memory(logsumexp) &&
      logsumexp.scalar_type() == wide &&
      logsumexp.sizes() == query.sizes().slice(0, 3);
}

std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> flash_backward(
    c10::DispatchKeySet keys,
    const torch::Tensor& grad_output,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const torch::Tensor& output,
    const torch::Tensor& logsumexp,
    double dropout,
    bool causal,
    const std::optional<torch::Tensor>& mask,
    std::optional<double> scale) {
  if (is_switched_on()) {
    const auto a =
        prepared_flash({query, key, value, mask, dropout, causal, scale});
    const bool ours = a && are_results(*a, grad_output, output, logsumexp);
    count_call(ours);
    if (ours) {
      kernels::TiledResults results{output, statistics_of(logsumexp)};
      if (!results.statistics.defined()) {
        results = kernels::run_forward(
            *a,
            /*dropout_seed=*/0,
            kernels::Statistics::kForBackward,
            layout_of_flash());
      }
      kernels::BackwardRequest request;
      request.grad_output = grad_output;
      request.wanted.resize(kernels::tensors_of(*a).size());
      auto gradients = kernels::run_backward(*a, results, request);
      return {
          gradients[kernels::kQuery],
          gradients[kernels::kKey],
          gradients[kernels::kValue]};
    }
  }
  return at::_ops::_scaled_dot_product_flash_attention_for_cpu_backward::
      redispatch(
          after_ours(keys),
          grad_output,
          query,
          key,
          value,
          output,
          logsumexp,
          dropout,
          causal,
          mask,
          scale);
}

} // namespace

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
TORCH_LIBRARY_IMPL(aten, BackendSelect, library) {
  library.impl(
      "_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(flash_attention));
  library.impl(
      "_scaled_dot_product_flash_attention_for_cpu_backward",
      TORCH_FN(flash_backward));
}

} // namespace torch_attention::operators
