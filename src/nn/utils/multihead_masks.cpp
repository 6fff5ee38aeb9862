#include <nn/utils/multihead_masks.h>

#include <check.h>
#include <kernels/plain.h>

#include <ATen/ops/constant_pad_nd.h>

namespace torch_attention::detail {

namespace {

constexpr const char* kAttend = "attend";

/// Combines `mask`, which broadcasts to the scores, with the mask or the bias.
void add_mask(MultiheadMasks& masks, const torch::Tensor& mask) {
  if (mask.scalar_type() == torch::kBool) {
    masks.hidden =
        masks.hidden.defined() ? masks.hidden.bitwise_or(mask) : mask;
  } else {
    masks.bias = masks.bias.defined() ? masks.bias + mask : mask;
  }
}

void check_mask(
    const char* what,
    const char* shapes,
    const torch::Tensor& mask,
    const MultiheadScores& scores,
    bool fits) {
  kernels::check_device(kAttend, what, mask, scores.device);
  TORCH_ATTENTION_CHECK(
      mask.scalar_type() == torch::kBool || mask.is_floating_point(),
      "attend: expected a bool {} (true hides) or a floating-point one "
      "(added to the scores), but got {}; convert it with "
      ".to(torch::kBool)",
      what,
      mask.scalar_type());
  TORCH_ATTENTION_CHECK(
      fits,
      "attend: expected {} of shape {} with B = {}, H = {}, T = {}, S = "
      "{}, but got {}",
      what,
      shapes,
      scores.B,
      scores.H,
      scores.T,
      scores.S,
      mask.sizes());
}

} // namespace

MultiheadMasks read_masks(
    const torch::Tensor& key_padding_mask,
    const torch::Tensor& attn_mask,
    const MultiheadScores& scores) {
  const auto& [B, H, T, S, device] = scores;
  MultiheadMasks masks;
  if (key_padding_mask.defined()) {
    check_mask(
        "key_padding_mask",
        "(B, S)",
        key_padding_mask,
        scores,
        key_padding_mask.sizes() == torch::IntArrayRef({B, S}));
    add_mask(masks, key_padding_mask.unsqueeze(1).unsqueeze(1));
  }
  if (attn_mask.defined()) {
    const bool for_each = attn_mask.dim() == 3;
    check_mask(
        "attn_mask",
        "(T, S) or (B * H, T, S)",
        attn_mask,
        scores,
        for_each ? attn_mask.sizes() == torch::IntArrayRef({B * H, T, S})
                 : attn_mask.sizes() == torch::IntArrayRef({T, S}));
    add_mask(masks, for_each ? attn_mask.reshape({B, H, T, S}) : attn_mask);
  }
  return masks;
}

void see_more_keys(MultiheadMasks& masks, int64_t count) {
  for (auto* mask : {&masks.hidden, &masks.bias}) {
    if (mask->defined()) {
      *mask = at::constant_pad_nd(*mask, {0, count});
    }
  }
}

} // namespace torch_attention::detail
