#include <kernels/attention.h>

#include <kernels/backward_node.h>
#include <kernels/heads.h>
#include <kernels/plain.h>
#include <kernels/positions.h>

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace torch_attention::kernels {

namespace {

/// Returns the dtype in which LibTorch would compute.
torch::ScalarType dtype_of_libtorch(const Attention& a) {
  const auto device = a.query.device().type();
  const auto dtype = a.query.scalar_type();
  // Autocast may not support other devices.
  const bool known = device == torch::kCPU || device == torch::kCUDA;
  return known && dtype != torch::kDouble &&
          at::autocast::is_autocast_enabled(device)
      ? at::autocast::get_autocast_dtype(device)
      : dtype;
}

/// Returns whether the biases, ALiBi included, have more bits than the scores.
/// LibTorch would round them to the scores' dtype, in which a distance of 1100
/// may be off by 4.
bool rounds_what_is_added(const Attention& a) {
  const auto dtype = dtype_of_libtorch(a);
  const bool half = dtype == torch::kHalf || dtype == torch::kBFloat16;
  return half &&
      (a.alibi_slopes.defined() ||
       (a.bias.defined() && a.bias.scalar_type() != dtype));
}

/// Returns LibTorch's `attn_mask` for what `is_causal` does not express:
/// undefined, bool (true attends) or additive. It broadcasts to (..., T, S).
torch::Tensor explicit_mask(const Attention& a, bool is_causal) {
  torch::Tensor hidden = a.mask;
  if (!is_causal) {
    const auto by_position = hidden_by_position(
        a, a.query.dim(), a.query.size(-2), a.key.size(-2), a.query.device());
    if (by_position.defined()) {
      hidden = hidden.defined() ? hidden.bitwise_or(by_position) : by_position;
    }
  }
  auto bias = added_by_position(
      a, a.query.dim(), a.query.size(-2), a.key.size(-2), a.query.device());
  if (a.bias.defined()) {
    bias = bias.defined() ? bias + a.bias : a.bias;
  }
  if (!bias.defined()) {
    return hidden.defined() ? hidden.bitwise_not() : hidden;
  }
  bias = bias.to(a.query.scalar_type());
  return hidden.defined()
      ? torch::where(hidden, -std::numeric_limits<double>::infinity(), bias)
      : bias;
}

/// The operands of LibTorch's kernels: (B, H, T, D), the same heads for all.
struct Operands {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  double scale;
  double dropout;
};

/// Calls FlashAttention, whose causal mask is aligned with the last key.
torch::Tensor flash(const Operands& x) {
  // head_dim must be a multiple of this.
  constexpr int64_t kMultiple = 8;
  const auto D = x.query.size(-1);
  const auto padded = [&](const torch::Tensor& tensor) {
    return D % kMultiple == 0
        ? tensor
        : at::constant_pad_nd(tensor, {0, kMultiple - D % kMultiple});
  };
  const auto output = std::get<0>(at::_scaled_dot_product_flash_attention(
      padded(x.query),
      padded(x.key),
      padded(x.value),
      x.dropout,
      /*is_causal=*/true,
      /*return_debug_mask=*/false,
      x.scale));
  return output.slice(-1, 0, D);
}

/// Calls the memory-efficient kernel, with its mask aligned with the last key.
torch::Tensor efficient(const Operands& x) {
  constexpr int64_t kByLastKey = 2;
  return std::get<0>(at::_efficient_attention_forward(
                         x.query.transpose(1, 2),
                         x.key.transpose(1, 2),
                         x.value.transpose(1, 2),
                         /*bias=*/{},
                         /*cu_seqlens_q=*/{},
                         /*cu_seqlens_k=*/{},
                         /*max_seqlen_q=*/std::nullopt,
                         /*max_seqlen_k=*/std::nullopt,
                         x.dropout,
                         kByLastKey,
                         is_recorded({&x.query, &x.key, &x.value}),
                         x.scale))
      .transpose(1, 2);
}

/// Returns causal attention of queries that are the last of more keys, by the
/// kernel that LibTorch would choose without a mask, as
/// `torch.nn.attention.bias.causal_lower_right` does in Python. LibTorch's own
/// `scaled_dot_product_attention` needs a tensor (T, S) for this. By LibTorch's
/// choice:
///
/// - flash: flash, for half precision; its mask is aligned with the last key.
/// - efficient: efficient, for float32 and older devices; set to the last key.
/// - cuDNN: flash, where the user allows it, since cuDNN's mask is aligned with
///   the first key; flash runs on the devices for which cuDNN is chosen.
/// - math and others: none, since they form (T, S) in any case.
std::optional<torch::Tensor> causal_block(const Operands& x) {
  // LibTorch's scaled_dot_product_attention splits more blocks itself.
  constexpr int64_t kMostBlocks = 65535;
  const bool fits = x.query.size(2) <= x.key.size(2) &&
      x.query.size(0) <= kMostBlocks && x.query.size(1) <= kMostBlocks;
  // Autocast does not cover all of these operators; ROCm's have no such mask.
  if (!x.query.is_cuda() || !fits || at::globalContext().hasROCM() ||
      at::autocast::is_autocast_enabled(at::kCUDA)) {
    return std::nullopt;
  }
  const auto choice = static_cast<at::SDPBackend>(at::_fused_sdp_choice(
      x.query,
      x.key,
      x.value,
      /*attn_mask=*/{},
      x.dropout,
      /*is_causal=*/false,
      x.scale));
  if (choice == at::SDPBackend::efficient_attention) {
    return efficient(x);
  }
  const bool flash_may = at::globalContext().userEnabledFlashSDP() &&
      x.query.size(-1) == x.value.size(-1);
  if (flash_may &&
      (choice == at::SDPBackend::flash_attention ||
       choice == at::SDPBackend::cudnn_attention)) {
    return flash(x);
  }
  return std::nullopt;
}

/// Computes in float32 and rounds at the end. Converts all keys, even in a
/// decode step: LibTorch has no half-precision kernel that keeps the bits of
/// the biases.
torch::Tensor in_float(const Attention& attention) {
  const auto dtype = dtype_of_libtorch(attention);
  // Autocast would round again.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  auto a = attention;
  for (auto* x : {&a.query, &a.key, &a.value}) {
    *x = x->to(dtype).to(torch::kFloat);
  }
  return libtorch(a).to(dtype);
}

bool has_tangents(const Attention& a) {
  const auto tensors = {&a.query, &a.key, &a.value, &a.bias, &a.alibi_slopes};
  return std::any_of(
      tensors.begin(), tensors.end(), [](const torch::Tensor* x) {
        return x->defined() && has_tangent(*x);
      });
}

/// Leaves out a rule that hides nothing: a single query at the end sees all
/// keys.
Attention simplified(const Attention& attention) {
  auto a = attention;
  if (a.query.size(-2) == 1 && !a.query_offsets.defined()) {
    a.rule.causal = false;
  }
  return a;
}

} // namespace

bool is_libtorch(const Attention& attention) {
  // LibTorch's kernels take masks, but not scores that change by their value,
  // nor sinks, nor forward derivatives.
  return attention.rule.is_linear() && !attention.sinks.defined() &&
      !has_tangents(attention);
}

torch::Tensor libtorch(const Attention& attention) {
  if (rounds_what_is_added(attention)) {
    return in_float(attention);
  }
  const auto a = simplified(attention);
  auto query = a.query;
  auto scale = a.rule.scale;
  // LibTorch scales after it hides keys by -inf, which a factor <= 0 would
  // turn.
  if (scale && !(*scale > 0)) {
    query = query * *scale;
    scale = 1.0;
  }
  // LibTorch aligns its causal mask with the first key, we with the last, which
  // agree only for as many keys as queries. It takes no other mask with it.
  const bool only_causal = a.rule.is_only_causal() && !a.mask.defined() &&
      !a.bias.defined() && !a.alibi_slopes.defined() &&
      !a.key_lengths.defined() && !a.query_offsets.defined();
  const bool is_causal = only_causal && query.size(-2) == a.key.size(-2);
  const Operands operands{
      to_rank_4(query),
      to_rank_4(share_heads(a.key, query)),
      to_rank_4(share_heads(a.value, query)),
      scale.value_or(a.rule.factor(query.size(-1))),
      a.dropout};
  if (only_causal && !is_causal) {
    if (const auto output = causal_block(operands)) {
      return from_rank_4(*output, query);
    }
  }
  const auto mask = explicit_mask(a, is_causal);
  std::optional<torch::Tensor> attn_mask;
  if (mask.defined()) {
    attn_mask = scores_to_rank_4(mask, query);
  }
  const auto output = at::scaled_dot_product_attention(
      operands.query,
      operands.key,
      operands.value,
      attn_mask,
      a.dropout,
      is_causal,
      scale);
  return from_rank_4(output, query);
}

} // namespace torch_attention::kernels
