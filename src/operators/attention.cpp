#include <operators/attention.h>

#include <kernels/choice.h>
#include <kernels/elements.h>
#include <kernels/tiled.h>
#include <nn/functional/checked_attention.h>
#include <operators/attention_call.h>
#include <operators/recorded.h>
#include <torch_attention/nn/functional/attention.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstring>

namespace torch_attention::operators {

namespace {

constexpr Pair kAttention{
    "_attention_forward",
    "_attention_backward",
    kNumArguments,
    /*num_gradients=*/1,
    kDifferentiable};

constexpr Pair kWithWeights{
    "attention_with_weights",
    "_attention_with_weights_backward",
    kNumArguments,
    /*num_gradients=*/2,
    kDifferentiable};

/// Makes torch.vmap call the operator once per slice.
void call_by_slices(const Operator& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(
      c10::DispatchKey::FuncTorchVmapMode);
  op.callBoxed(stack);
}

/// Returns statistics without values, as `_attention_forward` returns with
/// `output`.
torch::Tensor empty_statistics(const torch::Tensor& output) {
  const auto dtype = kernels::compute_dtype(output.scalar_type());
  c10::SymInt rows = 1;
  for (int64_t i = 0; i + 1 < output.dim(); ++i) {
    rows *= output.sym_size(i);
  }
  return at::empty_symint({2 * rows}, output.options().dtype(dtype));
}

torch::Tensor weights_of(
    const AttentionCall& call,
    const torch::Tensor& output) {
  auto sizes = output.sym_sizes().vec();
  sizes.back() = call.key.sym_size(-2);
  return at::empty_symint(sizes, call.query.options());
}

} // namespace

void attention(const Operator& /*op*/, Stack* stack) {
  const torch::NoGradGuard no_grad;
  const auto call = read_call(*stack);
  const auto output = functional::scaled_dot_product_attention(
      call.query, call.key, call.value, call.options);
  replace_last(*stack, kNumArguments, {as_output(output)});
}

void attention_meta(const Operator& /*op*/, Stack* stack) {
  replace_last(*stack, kNumArguments, {empty_output(read_sizes(*stack))});
}

void attention_autograd(const Operator& op, Stack* stack) {
  auto call = read_sizes(*stack);
  const bool recorded = is_recorded(kAttention, *stack);
  // Other devices use LibTorch's kernels, whose dropout a backward operator
  // cannot repeat from a seed. So a tracer has to record the single kernels.
  const bool by_libtorch = recorded && call.options.dropout() > 0 &&
      !call.query.is_cpu() && !call.query.is_meta();
  const bool transformed = is_transformed(*stack, kNumArguments);
  if (transformed) {
    call.options.kernel(Kernel::kReference);
  }
  if (by_libtorch || transformed || !is_watched(*stack, kNumArguments)) {
    // Autograd records the functional form, which supports double backward.
    read_block_mask(*stack, call);
    const auto output = functional::scaled_dot_product_attention(
        call.query, call.key, call.value, call.options);
    replace_last(*stack, kNumArguments, {output});
    return;
  }
  if (recorded) {
    const auto outputs = call_recorded(kAttention, *stack);
    replace_last(*stack, kNumArguments, {outputs[0]});
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.callBoxed(stack);
}

void attention_vmap(const Operator& op, Stack* stack) {
  auto call = read_sizes(*stack);
  if (call.options.dropout() == 0) {
    call_by_slices(op, stack);
    return;
  }
  read_block_mask(*stack, call);
  const auto output = functional::scaled_dot_product_attention(
      call.query,
      call.key,
      call.value,
      call.options.kernel(Kernel::kReference));
  replace_last(*stack, kNumArguments, {output});
}

void attention_with_weights(const Operator& /*op*/, Stack* stack) {
  const torch::NoGradGuard no_grad;
  const auto call = read_call(*stack);
  const auto [output, weights] =
      functional::scaled_dot_product_attention_with_weights(
          call.query, call.key, call.value, call.options);
  replace_last(
      *stack, kNumArguments, {as_output(output), weights.contiguous()});
}

void attention_with_weights_meta(const Operator& /*op*/, Stack* stack) {
  const auto call = read_sizes(*stack);
  const auto output = empty_output(call);
  replace_last(*stack, kNumArguments, {output, weights_of(call, output)});
}

void attention_with_weights_autograd(const Operator& op, Stack* stack) {
  if (is_transformed(*stack, kNumArguments) ||
      !is_watched(*stack, kNumArguments)) {
    const auto call = read_call(*stack);
    const auto [output, weights] =
        functional::scaled_dot_product_attention_with_weights(
            call.query, call.key, call.value, call.options);
    replace_last(*stack, kNumArguments, {output, weights});
    return;
  }
  if (is_recorded(kWithWeights, *stack)) {
    const auto outputs = call_recorded(kWithWeights, *stack);
    replace_last(*stack, kNumArguments, {outputs[0], outputs[1]});
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.callBoxed(stack);
}

void attention_with_weights_vmap(const Operator& op, Stack* stack) {
  auto call = read_sizes(*stack);
  if (call.options.dropout() == 0) {
    call_by_slices(op, stack);
    return;
  }
  read_block_mask(*stack, call);
  const auto [output, weights] =
      functional::scaled_dot_product_attention_with_weights(
          call.query, call.key, call.value, call.options);
  replace_last(*stack, kNumArguments, {output, weights});
}

void attention_forward(const Operator& /*op*/, Stack* stack) {
  const torch::NoGradGuard no_grad;
  const auto call = read_call(*stack);
  const auto a = functional::detail::checked_attention(
      call.query, call.key, call.value, call.options);
  kernels::TiledResults results;
  const auto choice = kernels::choose(a, Kernel::kAuto);
  if (choice == kernels::Choice::kTiled) {
    results = kernels::tiled_forward(a);
  } else {
    results.output = kernels::compute(choice, a);
    results.statistics = empty_statistics(results.output);
  }
  const auto output = functional::detail::lacks_batch(call.options, call.query)
      ? results.output.squeeze(0)
      : results.output;
  int64_t seed = 0;
  std::memcpy(&seed, &results.dropout_seed, sizeof(seed));
  replace_last(
      *stack,
      kNumArguments,
      {as_output(output),
       results.statistics,
       at::full({}, seed, call.query.options().dtype(torch::kLong))});
}

void attention_forward_meta(const Operator& /*op*/, Stack* stack) {
  const auto call = read_sizes(*stack);
  const auto output = empty_output(call);
  replace_last(
      *stack,
      kNumArguments,
      {output,
       empty_statistics(output),
       at::empty({}, call.query.options().dtype(torch::kLong))});
}

void sdpa(const Operator& /*op*/, Stack* stack) {
  constexpr size_t kNumSdpaArguments = 8;
  const auto last = torch::jit::last(*stack, kNumSdpaArguments);
  const Stack given(last.begin(), last.end());
  const auto query = given[0].toTensor();
  const auto key = given[1].toTensor();
  const auto attn_mask = tensor_of(given[3]);
  TORCH_CHECK(
      !attn_mask.defined() || !given[5].toBool(),
      "scaled_dot_product_attention: expected attn_mask or is_causal, but got "
      "both");
  // In the order of the schema of `attention`.
  Stack arguments(kNumArguments);
  std::copy_n(given.begin(), 3, arguments.begin());
  constexpr auto kCausal = index_of("causal");
  constexpr auto kMask = index_of("mask");
  arguments[kCausal] = false;
  if (attn_mask.defined() && attn_mask.scalar_type() == torch::kBool) {
    arguments[kMask] = attn_mask.logical_not();
  } else if (attn_mask.defined()) {
    arguments[index_of("bias")] = attn_mask;
  }
  arguments[index_of("scale")] = given[6];
  arguments[index_of("enable_gqa")] = given[7];
  arguments[index_of("dropout_p")] = given[4];
  if (given[5].toBool()) {
    const auto T = query.sym_size(-2);
    const auto S = key.sym_size(-2);
    if (T == S) {
      arguments[kCausal] = true;
    } else {
      // LibTorch aligns the diagonal with the first key, we align it with the
      // last.
      const auto options = query.options().dtype(torch::kLong);
      arguments[kMask] =
          at::arange(S, options).gt(at::arange(T, options).unsqueeze(1));
    }
  }
  find_operator("attention").callBoxed(&arguments);
  replace_last(*stack, kNumSdpaArguments, {arguments.back()});
}

void autocast_attention(const Operator& op, Stack* stack) {
  const auto device =
      torch::jit::peek(*stack, 0, kNumArguments).toTensor().device().type();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const auto dtype = at::autocast::get_autocast_dtype(device);
  for (size_t i = 0; i < 3; ++i) {
    auto& x = torch::jit::peek(*stack, i, kNumArguments);
    x = at::autocast::cached_cast(dtype, x.toTensor(), device);
  }
  op.callBoxed(stack);
}

} // namespace torch_attention::operators
