#include <nn/modules/multi_head_options.h>

#include <check.h>
#include <nn/checks.h>
#include <nn/modules/heads.h>
#include <nn/modules/multi_head_call.h>
#include <nn/modules/temperature.h>
#include <nn/rotary.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <ostream>

namespace torch_attention::detail {

namespace {

void check_norms(const MultiHeadAttentionOptions& options) {
  TORCH_ATTENTION_CHECK(
      !options.value_norm_eps() || *options.value_norm_eps() >= 0,
      "MultiHeadAttention: expected value_norm_eps >= 0, but got {}",
      *options.value_norm_eps());
  const bool normalises_all = options.qk_norm() &&
      options.qk_norm()->scope() == HeadNormScope::kAllHeads;
  TORCH_CHECK(
      !normalises_all || !options.qk_norm()->after_rotary(),
      "MultiHeadAttention: expected a qk_norm of all heads before the "
      "rotary embedding, but got after_rotary = true");
  TORCH_CHECK(
      !options.out_norm() || !options.out_norm()->after_rotary(),
      "MultiHeadAttention: expected an out_norm without after_rotary, since it "
      "is after attention, but got after_rotary = true");
}

void check_rotates(const MultiHeadAttentionOptions& options) {
  TORCH_CHECK(
      !options.rotate_values() || options.rotary(),
      "MultiHeadAttention: expected rotary beside rotate_values, but got none");
  if (!options.rotary()) {
    return;
  }
  const auto head_dim = head_dim_of(options);
  check_rotary(kMultiHead, *options.rotary(), head_dim);
  const auto rotated = options.rotary()->dim().value_or(head_dim);
  TORCH_ATTENTION_CHECK(
      !options.rotate_values() || value_dim_of(options) >= rotated,
      "MultiHeadAttention: expected value_dim >= {}, the size that "
      "rotate_values rotates, but got {}",
      rotated,
      value_dim_of(options));
}

void print_projections(
    std::ostream& stream,
    const MultiHeadAttentionOptions& options) {
  if (options.output_gate()) {
    const auto& gate = *options.output_gate();
    stream << ", output_gate=" << gate.scope() << ' ' << gate.function();
    if (gate.bias()) {
      stream << ", output_gate_bias=" << (*gate.bias() ? "true" : "false");
    }
  }
  if (options.out_norm()) {
    const auto& norm = *options.out_norm();
    stream << ", out_norm=" << norm.kind() << ' ' << norm.scope();
  }
  if (options.clip_qkv()) {
    stream << ", clip_qkv=" << *options.clip_qkv();
  }
  if (options.value_norm_eps()) {
    stream << ", value_norm_eps=" << *options.value_norm_eps();
  }
  if (options.value_scale() != 1) {
    stream << ", value_scale=" << options.value_scale();
  }
  if (options.query_scale()) {
    stream << ", query_scale=true";
  }
}

void print_positions(
    std::ostream& stream,
    const MultiHeadAttentionOptions& options) {
  if (options.temperature()) {
    print_temperature(stream, *options.temperature());
  }
  if (options.rotary()) {
    const auto& rotary = *options.rotary();
    stream << ", rotary_theta=" << rotary.theta()
           << ", rotary_dim=" << rotary.dim().value_or(head_dim_of(options))
           << ", rotary_pairing=" << rotary.pairing()
           << ", rotary_factor=" << rotary.factor();
    if (rotary.scaling() != RotaryScaling::kLinear) {
      stream << ", rotary_scaling=" << rotary.scaling();
    }
    if (rotary.reversed()) {
      stream << ", rotary_reversed=true";
    }
  }
  if (options.rotate_values()) {
    stream << ", rotate_values=true";
  }
}

} // namespace

void check_options(const MultiHeadAttentionOptions& options) {
  check_heads(kMultiHead, options);
  checks::check_positive(
      kMultiHead, "context_length", options.context_length());
  checks::check_rule(kMultiHead, options.rule());
  TORCH_ATTENTION_CHECK(
      !options.clip_qkv() || *options.clip_qkv() > 0,
      "MultiHeadAttention: expected clip_qkv > 0, but got {}",
      *options.clip_qkv());
  TORCH_ATTENTION_CHECK(
      std::isfinite(options.value_scale()),
      "MultiHeadAttention: expected a finite value_scale, but got {}",
      options.value_scale());
  check_norms(options);
  if (options.temperature()) {
    check_temperature(kMultiHead, *options.temperature());
  }
  check_rotates(options);
}

void print_options(
    std::ostream& stream,
    const MultiHeadAttentionOptions& options) {
  stream << "torch_attention::MultiHeadAttention(d_in=" << options.d_in()
         << ", d_out=" << options.d_out()
         << ", context_length=" << options.context_length();
  print_heads(stream, options);
  if (options.alibi()) {
    stream << ", alibi=true";
  }
  if (options.sinks()) {
    stream << ", sinks=true";
  }
  print_projections(stream, options);
  print_positions(stream, options);
  if (options.block_scope() != BlockScope::kCausal) {
    stream << ", block_scope=" << options.block_scope();
  }
  if (options.needs_blocks()) {
    stream << ", needs_blocks=true";
  }
  if (options.needs_value_input()) {
    stream << ", needs_value_input=true";
  }
  stream << ", dropout=" << options.dropout() << ", qkv_bias=" << std::boolalpha
         << options.qkv_bias() << ", causal=" << options.causal()
         << ", kernel=" << options.kernel() << ")";
}

} // namespace torch_attention::detail
