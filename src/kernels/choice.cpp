#include <kernels/choice.h>

#include <check.h>
#include <kernels/backward_node.h>
#include <kernels/block_mask.h>
#include <kernels/query_blocks.h>
#include <kernels/sequences.h>
#include <torch_attention/same_bits.h>

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <atomic>

namespace torch_attention {

namespace {

std::atomic<Kernel> kernel_of_process{Kernel::kAuto};
std::atomic<bool> same_bits_in_process{false};

} // namespace

void set_default_kernel(Kernel kernel) {
  TORCH_ATTENTION_CHECK(
      kernel == Kernel::kAuto || kernel == Kernel::kReference ||
          kernel == Kernel::kFused,
      "set_default_kernel: expected kAuto, kReference or kFused, but got {}",
      static_cast<int>(kernel));
  kernel_of_process = kernel;
}

Kernel default_kernel() {
  return kernel_of_process.load(std::memory_order_relaxed);
}

void set_same_bits(bool same_bits) {
  same_bits_in_process = same_bits;
}

bool same_bits() {
  return same_bits_in_process.load(std::memory_order_relaxed);
}

namespace kernels {

namespace {

/// Returns whether an input has NaN or infinities. The reference would multiply
/// hidden ones by 0, which gives NaN.
bool has_non_finite(const Attention& a) {
  const auto inputs = {&a.query, &a.key, &a.value};
  return !std::all_of(inputs.begin(), inputs.end(), [](const auto* x) {
    return x->detach().isfinite().all().template item<bool>();
  });
}

} // namespace

Kernel resolved(Kernel asked) {
  return asked == Kernel::kAuto ? default_kernel() : asked;
}

Choice choose(const Attention& a, Kernel asked_in_call) {
  if (a.calls_back()) {
    return Choice::kReference;
  }
  const auto asked = resolved(asked_in_call);
  const bool by_tiles = is_tiled(a);
  // Kernels differ for empty tensors. For a single key, whose weight is 1,
  // LibTorch's kernels give rounding noise as the gradients of query and key,
  // which are zero. On the meta device they lack operators in C++.
  if (a.query.numel() == 0 || a.value.numel() == 0 || a.query.is_meta() ||
      (a.key.size(-2) == 1 && !by_tiles)) {
    return Choice::kReference;
  }
  if (asked == Kernel::kReference) {
    return by_tiles && a.dropout == 0 && has_non_finite(a) ? Choice::kTiled
                                                           : Choice::kReference;
  }
  if (by_tiles) {
    return Choice::kTiled;
  }
  // LibTorch's fused kernels have no dropout on the CPU: LibTorch would form
  // the T x S weights as well, so take the reference, with Python's stream.
  const bool drops_on_cpu = a.dropout > 0 && a.query.is_cpu();
  // Their random numbers do not depend on the index of the head among all
  // heads.
  const bool drops_shared_heads = a.dropout > 0 && a.heads.all > 0;
  if (!is_libtorch(a) || drops_shared_heads ||
      (asked == Kernel::kAuto && drops_on_cpu)) {
    return Choice::kReference;
  }
  return Choice::kLibTorch;
}

bool reads_blocks(const Attention& a, Kernel asked) {
  return resolved(asked) != Kernel::kReference &&
      choose(a, asked) == Choice::kTiled && a.query.dim() == 4 &&
      !is_packed(a) && a.dropout == 0 && !is_recorded(tensors_of(a)) &&
      !at::autocast::is_autocast_enabled(at::kCPU);
}

namespace {

/// Computes by operators, which form the scores: on devices those of some
/// queries after the others, where no graph keeps them.
torch::Tensor by_operators(const Attention& a) {
  const auto output_of = [](const Attention& one) {
    return std::get<0>(reference(one));
  };
  const bool in_blocks = !a.query.is_cpu() && !a.calls_back() &&
      a.dropout == 0 && has_query_blocks(a) && !is_recorded(tensors_of(a));
  return in_blocks ? by_query_blocks(a, output_of) : output_of(a);
}

} // namespace

torch::Tensor compute(Choice choice, const Attention& attention) {
  if (attention.block_mask.defined() && choice != Choice::kTiled) {
    const auto& query = attention.query;
    return compute(
        choice, with_dense_mask(attention, query.dim(), query.device()));
  }
  if (is_packed(attention) && choice == Choice::kReference) {
    return by_sequences(attention, by_operators);
  }
  switch (choice) {
    case Choice::kTiled:
      return tiled(attention);
    case Choice::kLibTorch:
      return libtorch(attention);
    default:
      return by_operators(attention);
  }
}

bool takes_module(const ModuleAttention& module, Kernel asked) {
  return resolved(asked) != Kernel::kReference && !same_bits() &&
      is_small_module(module);
}

} // namespace kernels

} // namespace torch_attention
