#include <device/sdpa.h>

#include <device/arguments.h>
#include <device/efficient.h>
#include <device/flash.h>
#include <device/memory.h>
#include <device/sequences.h>
#include <support/test.h>

#include <ATen/Context.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/constant_pad_nd.h>

#include <atomic>
#include <cmath>
#include <limits>

namespace torch_attention::testing {

namespace sdpa_function {

namespace {

std::atomic<at::SDPBackend> preferred_backend{at::SDPBackend::flash_attention};

/// The arguments of `at::scaled_dot_product_attention`: (B, H, T, D), (B, G, S,
/// D) and (B, G, S, Dv).
struct SdpaCall {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  torch::Tensor mask;
  double dropout = 0.0;
  bool causal = false;
  std::optional<double> scale;
  bool grouped = false;
};

SdpaCall read_call(OperatorArguments& arguments) {
  SdpaCall x;
  x.query = arguments.tensor("query");
  x.key = arguments.tensor("key");
  x.value = arguments.tensor("value");
  x.mask = arguments.tensor("attn_mask");
  x.dropout = arguments.number("dropout_p");
  x.causal = arguments.flag("is_causal");
  x.scale = arguments.optional_number("scale");
  x.grouped = arguments.flag("enable_gqa");
  arguments.check_all_read();
  return x;
}

bool rows_are_contiguous(const torch::Tensor& x) {
  return !x.defined() || x.stride(-1) == 1;
}

/// Returns whether the tensors fit each other, apart from their heads.
bool sizes_fit(const SdpaCall& x) {
  return x.query.dim() == 4 && x.key.dim() == 4 && x.value.dim() == 4 &&
      x.query.size(0) == x.key.size(0) && x.query.size(0) == x.value.size(0) &&
      x.query.scalar_type() == x.key.scalar_type() &&
      x.query.scalar_type() == x.value.scalar_type() && x.query.size(2) > 0 &&
      x.key.size(2) > 0 && rows_are_contiguous(x.query) &&
      rows_are_contiguous(x.key) && rows_are_contiguous(x.value);
}

bool is_half(const SdpaCall& x) {
  return x.query.scalar_type() == torch::kHalf ||
      x.query.scalar_type() == torch::kBFloat16;
}

bool flash_fits(const SdpaCall& x) {
  const auto D = x.query.size(-1);
  return sizes_fit(x) && is_half(x) && !x.mask.defined() && D <= 256 &&
      D == x.key.size(-1) && D == x.value.size(-1) &&
      x.key.size(1) == x.value.size(1) &&
      (x.grouped ? x.query.size(1) % x.key.size(1) == 0
                 : x.query.size(1) == x.key.size(1)) &&
      (!x.causal || x.query.size(2) == x.key.size(2)) &&
      at::globalContext().userEnabledFlashSDP();
}

bool efficient_fits(const SdpaCall& x) {
  const auto alignment = is_half(x) ? 8 : 4;
  return sizes_fit(x) &&
      (is_half(x) || x.query.scalar_type() == torch::kFloat) &&
      x.query.size(1) == x.key.size(1) && x.query.size(1) == x.value.size(1) &&
      x.query.size(-1) == x.key.size(-1) && x.query.size(-1) % alignment == 0 &&
      x.value.size(-1) % alignment == 0 && rows_are_contiguous(x.mask) &&
      at::globalContext().userEnabledMemEfficientSDP();
}

at::SDPBackend choice_for(const SdpaCall& x) {
  const auto preferred = preferred_backend.load();
  if ((preferred == at::SDPBackend::flash_attention ||
       preferred == at::SDPBackend::cudnn_attention) &&
      flash_fits(x)) {
    return preferred;
  }
  if (preferred != at::SDPBackend::math && efficient_fits(x)) {
    return at::SDPBackend::efficient_attention;
  }
  return at::SDPBackend::math;
}

OperatorResults fused_choice(OperatorArguments& arguments) {
  return {static_cast<int64_t>(choice_for(read_call(arguments)))};
}

void check_call(const SdpaCall& x) {
  constexpr const char* kName = "scaled_dot_product_attention";
  const auto dtype = x.query.scalar_type();
  require(
      x.query.dim() >= 2 && x.key.dim() >= 2 && x.value.dim() >= 2 &&
          x.key.scalar_type() == dtype && x.value.scalar_type() == dtype &&
          x.key.device() == x.query.device() &&
          x.value.device() == x.query.device(),
      kName,
      "query, key and value of one dtype on one device");
  require(
      !x.mask.defined() || !x.causal,
      kName,
      "attn_mask or is_causal, not both");
  require(
      !x.mask.defined() || x.mask.scalar_type() == torch::kBool ||
          x.mask.scalar_type() == dtype,
      kName,
      "a mask of bool or of the query's dtype");
}

torch::Tensor by_flash(const SdpaCall& x) {
  constexpr int64_t kMultiple = 8;
  const auto D = x.query.size(-1);
  const auto padded = [&](const torch::Tensor& each) {
    return D % kMultiple == 0
        ? each
        : at::constant_pad_nd(each, {0, kMultiple - D % kMultiple});
  };
  const auto scale = x.scale.value_or(1 / std::sqrt(static_cast<double>(D)));
  const auto output = std::get<0>(at::_scaled_dot_product_flash_attention(
      padded(x.query),
      padded(x.key),
      padded(x.value),
      x.dropout,
      x.causal,
      /*return_debug_mask=*/false,
      scale));
  return output.slice(-1, 0, D);
}

/// Returns a mask whose rows are aligned, as large as the scores.
torch::Tensor aligned_mask(const SdpaCall& x) {
  constexpr int64_t kMultiple = 8;
  const auto S = x.key.size(2);
  auto mask = x.mask;
  const auto missing = (kMultiple - mask.size(-1) % kMultiple) % kMultiple;
  if (missing > 0) {
    mask = at::constant_pad_nd(mask, {0, missing}).slice(-1, 0, mask.size(-1));
  }
  return mask.expand({x.query.size(0), x.query.size(1), x.query.size(2), S});
}

torch::Tensor by_efficient(const SdpaCall& x) {
  const auto wants_gradients = torch::GradMode::is_enabled() &&
      (x.query.requires_grad() || x.key.requires_grad() ||
       x.value.requires_grad());
  return std::get<0>(at::_scaled_dot_product_efficient_attention(
      x.query,
      x.key,
      x.value,
      x.mask.defined() ? std::optional(aligned_mask(x)) : std::nullopt,
      wants_gradients,
      x.dropout,
      x.causal,
      x.scale));
}

torch::Tensor by_math(const SdpaCall& x) {
  return std::get<0>(at::_scaled_dot_product_attention_math(
      x.query,
      x.key,
      x.value,
      x.mask.defined() ? std::optional(x.mask) : std::nullopt,
      x.dropout,
      x.causal,
      /*dropout_mask=*/std::nullopt,
      x.scale,
      x.grouped));
}

/// LibTorch's own function takes this device for one without fused kernels.
void attend(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  OperatorArguments arguments(
      op, torch::jit::last(*stack, op.schema().arguments().size()));
  auto x = read_call(arguments);
  check_call(x);
  const auto choice = static_cast<at::SDPBackend>(at::_fused_sdp_choice(
      x.query,
      x.key,
      x.value,
      x.mask.defined() ? std::optional(x.mask) : std::nullopt,
      x.dropout,
      x.causal,
      x.scale,
      x.grouped));
  if (x.mask.defined() && x.mask.scalar_type() == torch::kBool) {
    x.mask =
        torch::zeros(x.mask.sizes(), x.query.options())
            .masked_fill_(
                x.mask.logical_not(), -std::numeric_limits<double>::infinity());
  }
  // Nothing here stands for cuDNN's kernel.
  const auto output = choice == at::SDPBackend::flash_attention ? by_flash(x)
      : choice == at::SDPBackend::efficient_attention ? by_efficient(x)
                                                      : by_math(x);
  replace_arguments(op, stack, {output});
}

/// (B, H, T, D) to (B, T, H, D) and back.
torch::Tensor transposed(const torch::Tensor& x) {
  return x.defined() ? x.transpose(1, 2) : x;
}

FlashCall read_flash(OperatorArguments& arguments) {
  FlashCall call;
  call.query = transposed(arguments.tensor("query"));
  call.key = transposed(arguments.tensor("key"));
  call.value = transposed(arguments.tensor("value"));
  call.dropout = arguments.number("dropout_p");
  call.causal = arguments.flag("is_causal");
  call.scale = arguments.optional_number("scale");
  return call;
}

OperatorResults flash(OperatorArguments& arguments) {
  const auto call = read_flash(arguments);
  require(
      !arguments.flag("return_debug_mask"),
      "_scaled_dot_product_flash_attention",
      "no return_debug_mask");
  arguments.check_all_read();
  const auto found = flash_forward(call);
  return {
      transposed(found.output),
      found.logsumexp,
      torch::Tensor(),
      torch::Tensor(),
      call.query.size(1),
      call.key.size(1),
      found.rng_state,
      found.unused,
      torch::empty({0}, call.query.options())};
}

OperatorResults flash_gradients(OperatorArguments& arguments) {
  auto call = read_flash(arguments);
  call.query_starts = arguments.tensor("cum_seq_q");
  call.key_starts = arguments.tensor("cum_seq_k");
  call.most_queries = arguments.integer("max_q");
  call.most_keys = arguments.integer("max_k");
  const FlashOutput given{
      transposed(arguments.tensor("out")),
      arguments.tensor("logsumexp"),
      arguments.tensor("rng_state", "philox_seed"),
      arguments.tensor("unused", "philox_offset")};
  const auto grad_output = arguments.tensor("grad_out");
  arguments.check_all_read();
  const auto found = flash_backward(call, transposed(grad_output), given);
  return {
      transposed(found.query), transposed(found.key), transposed(found.value)};
}

EfficientCall read_efficient(OperatorArguments& arguments) {
  EfficientCall call;
  call.query = transposed(arguments.tensor("query"));
  call.key = transposed(arguments.tensor("key"));
  call.value = transposed(arguments.tensor("value"));
  call.bias = arguments.tensor("attn_bias");
  call.dropout = arguments.number("dropout_p");
  call.mask_type = arguments.flag("is_causal") ? 1 : 0;
  call.scale = arguments.optional_number("scale");
  return call;
}

OperatorResults efficient(OperatorArguments& arguments) {
  auto call = read_efficient(arguments);
  call.wants_logsumexp = arguments.flag("compute_log_sumexp");
  arguments.check_all_read();
  const auto found = efficient_forward(call);
  return {transposed(found.output), found.logsumexp, found.seed, found.offset};
}

OperatorResults efficient_gradients(OperatorArguments& arguments) {
  const auto call = read_efficient(arguments);
  EfficientOutput given;
  given.output = transposed(arguments.tensor("out"));
  given.logsumexp = arguments.tensor("logsumexp");
  given.seed = arguments.tensor("philox_seed");
  given.offset = arguments.tensor("philox_offset");
  const auto grad_output = arguments.tensor("grad_out_");
  const auto wanted = arguments.flags("grad_input_mask");
  arguments.check_all_read();
  const auto found =
      efficient_backward(call, transposed(grad_output), given, wanted[3]);
  return {
      transposed(found.query),
      transposed(found.key),
      transposed(found.value),
      found.bias};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  implement<&fused_choice>(library, "_fused_sdp_choice");
  implement<&flash>(library, "_scaled_dot_product_flash_attention");
  implement<&flash_gradients>(
      library, "_scaled_dot_product_flash_attention_backward");
  implement<&efficient>(library, "_scaled_dot_product_efficient_attention");
  implement<&efficient_gradients>(
      library, "_scaled_dot_product_efficient_attention_backward");
  library.impl(
      "scaled_dot_product_attention",
      torch::CppFunction::makeFromBoxedFunction<&attend>());
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl(
      "scaled_dot_product_attention",
      torch::CppFunction::makeFromBoxedFunction<&attend>());
}

} // namespace

} // namespace sdpa_function

at::SDPBackend choose(at::SDPBackend preferred) {
  // LibTorch's own choice, on CUDA devices.
  auto& context = at::globalContext();
  if (on_cuda()) {
    context.setSDPUseCuDNN(false);
    context.setSDPUseFlash(preferred == at::SDPBackend::flash_attention);
    context.setSDPUseMemEfficient(preferred != at::SDPBackend::math);
  }
  return sdpa_function::preferred_backend.exchange(preferred);
}

} // namespace torch_attention::testing
