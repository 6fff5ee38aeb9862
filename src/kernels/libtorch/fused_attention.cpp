#include <kernels/libtorch/fused_attention.h>

#include <check.h>
#include <kernels/backward_node.h>
#include <kernels/sequences.h>

#include <ATen/ops/logaddexp.h>

#include <limits>
#include <utility>

namespace torch_attention::kernels {

namespace {

/// The tensors that a node saves, in this order: inputs with gradients, then
/// results, then what the call adds.
enum Saved : size_t {
  kQueryRows,
  kKeyRows,
  kValueRows,
  kRowSinks,
  kOutput,
  kLogsumexp,
  kSeed,
  kOffset,
  kAdded
};

/// Returns the part of `logsumexp` that has rows: the memory-efficient kernel
/// rounds their number up.
torch::Tensor used_part(const FusedCall& call, const torch::Tensor& logsumexp) {
  return logsumexp.dim() == 2
      ? logsumexp
      : logsumexp.narrow(
            2,
            0,
            call.packed ? call.packed->longest_query : call.query.size(1));
}

/// Returns `x`, which broadcasts to (B, H, T), so that it broadcasts to
/// `logsumexp`.
torch::Tensor like_logsumexp(
    const torch::Tensor& x,
    const torch::Tensor& logsumexp) {
  return logsumexp.dim() == 2 ? x.squeeze(0) : x;
}

/// Adds the sinks to the sums of `results`, and replaces what the kernels wrote
/// for rows without a key, which may be NaN.
void finish(const FusedAttention& a, FusedResults& results) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (a.rows.sinks.defined()) {
    auto sums = used_part(a.call, results.logsumexp);
    // Flash says that a row of a packed sequence sees no key.
    const auto no_key = sums.eq(std::numeric_limits<float>::infinity());
    const auto all =
        at::logaddexp(sums, like_logsumexp(a.rows.sinks, sums))
            .masked_fill_(no_key, std::numeric_limits<float>::infinity());
    const auto share = (sums - all).exp_().masked_fill_(no_key, 0);
    results.output = (results.output * for_each_row(a.call, share))
                         .to(results.output.scalar_type());
    sums.copy_(all);
  }
  if (!a.rows.no_key.defined()) {
    return;
  }
  results.output.masked_fill_(a.rows.no_key.transpose(1, 2).unsqueeze(-1), 0);
  if (results.logsumexp.numel() > 0) {
    // No weight is left then.
    used_part(a.call, results.logsumexp)
        .masked_fill_(a.rows.no_key, std::numeric_limits<float>::infinity());
  }
}

/// Computes the call by operators that autograd can differentiate again.
torch::Tensor by_definition(
    const FusedAttention& fused,
    const variable_list& inputs) {
  const auto& call = fused.call;
  TORCH_CHECK(
      call.dropout == 0,
      "attention: expected no dropout where gradients are differentiated "
      "again (create_graph) on this device, since LibTorch's kernels do not "
      "say what they dropped");
  // Kernels sum in float32: half precision would round large products.
  const auto dtype = inputs[kQueryRows].scalar_type();
  const auto heads = [&](Saved input) {
    const auto x = inputs[input].transpose(1, 2);
    return dtype == torch::kDouble ? x : x.to(torch::kFloat);
  };
  Attention a;
  a.rule = call.rule;
  a.query = heads(kQueryRows);
  a.key = heads(kKeyRows);
  a.value = heads(kValueRows);
  a.bias = call.added;
  a.sinks = inputs[kRowSinks];
  const auto output_of = [](const Attention& one) {
    return std::get<0>(reference(one));
  };
  if (call.packed) {
    a.query_starts = fused.query_starts;
    a.key_starts = fused.key_starts;
  }
  const auto output = call.packed ? by_sequences(a, output_of) : output_of(a);
  return output.to(dtype).transpose(1, 2);
}

/// Returns the gradient of sinks (b, h, t) which broadcast to the rows: those
/// of more rows are summed.
torch::Tensor gradient_of_sinks(
    const FusedCall& call,
    const torch::Tensor& sinks,
    const FusedResults& results,
    const torch::Tensor& grad_output) {
  const auto sums = used_part(call, results.logsumexp);
  const auto weight = (like_logsumexp(sinks, sums) - sums).exp();
  const auto of_rows =
      (grad_output.to(torch::kFloat) * results.output.to(torch::kFloat))
          .sum(-1, /*keepdim=*/true);
  // (B, T, H, 1) or (1, N, H, 1) -> (B or 1, H, T or N)
  const auto all =
      (for_each_row(call, weight) * of_rows).squeeze(-1).transpose(1, 2).neg();
  return all.sum_to_size(sinks.sizes()).to(sinks.scalar_type());
}

struct FusedBackward {
  static constexpr const char* kName = "FusedAttentionBackward";

  /// Without the tensors that are saved.
  FusedAttention attention;
  SavedOutput output;

  variable_list operator()(const BackwardRequest& request) const {
    auto a = attention;
    const auto& saved = request.saved;
    a.call.added = saved[kAdded];
    if (torch::GradMode::is_enabled()) {
      return differentiable_gradients(
          {saved.begin(), saved.begin() + kOutput},
          request,
          [&](const variable_list& inputs) {
            return by_definition(a, inputs);
          });
    }
    TORCH_CHECK(
        !output.is_changed(),
        "attention: expected the output as it was computed, but it was "
        "changed in place, and the backward pass on this device reads it; "
        "write `y = y + x` instead of `y += x`");
    a.call.query = saved[kQueryRows];
    a.call.key = saved[kKeyRows];
    a.call.value = saved[kValueRows];
    const FusedResults results{
        saved[kOutput], saved[kLogsumexp], saved[kSeed], saved[kOffset]};
    variable_list gradients(request.wanted.size());
    if (request.wanted[kQueryRows] || request.wanted[kKeyRows] ||
        request.wanted[kValueRows]) {
      const auto found = fused_backward(a.call, results, request.grad_output);
      std::copy(found.begin(), found.end(), gradients.begin());
    }
    if (request.wanted[kRowSinks]) {
      gradients[kRowSinks] = gradient_of_sinks(
          a.call, saved[kRowSinks], results, request.grad_output);
    }
    return gradients;
  }
};

} // namespace

torch::Tensor fused(const FusedAttention& attention) {
  const auto& [call, rows, query_starts, key_starts] = attention;
  const std::array inputs{&call.query, &call.key, &call.value, &rows.sinks};
  const bool recorded = is_recorded(inputs);
  auto results =
      fused_forward(call, /*with_logsumexp=*/recorded || rows.sinks.defined());
  finish(attention, results);
  if (!recorded) {
    return results.output;
  }
  TORCH_INTERNAL_ASSERT(!call.packed || !call.packed->keys_used.defined());
  FusedBackward backward{attention, SavedOutput(results.output)};
  auto& kept = backward.attention;
  kept.call.query = kept.call.key = kept.call.value = torch::Tensor();
  kept.call.added = kept.rows.sinks = torch::Tensor();
  const auto numbers = SavedOutput::numbers(results.output);
  record_backward(
      std::move(backward),
      results.output,
      inputs,
      {&numbers,
       &results.logsumexp,
       &results.seed,
       &results.offset,
       &call.added});
  return results.output;
}

} // namespace torch_attention::kernels
