#include <torch_attention/nn/modules/head_norm.h>

#include <nn/checks.h>
#include <nn/modules/head_split.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <ostream>
#include <vector>

namespace torch_attention {

namespace {

constexpr const char* kHeadNorm = "HeadNorm";

/// The mean of the squares of x over its last dimension, (..., 1); over those
/// of all processes if `split` is not null.
torch::Tensor mean_square_of(
    const torch::Tensor& x,
    const detail::HeadSplitPointer& split) {
  const auto own = x.square().mean(-1, /*keepdim=*/true);
  return split == nullptr
      ? own
      : split->sum(own) / static_cast<double>(split->num_processes);
}

/// The norm of x over its last dimension, without weights.
torch::Tensor normalized(
    const torch::Tensor& x,
    const HeadNormOptions& options,
    const detail::HeadSplitPointer& split) {
  if (options.kind() == HeadNormKind::kLayer) {
    return torch::layer_norm(x, {x.size(-1)}, {}, {}, options.eps());
  }
  const auto mean_square = mean_square_of(x, split);
  return x * (mean_square + options.eps()).rsqrt();
}

} // namespace

HeadNormImpl::HeadNormImpl(
    int64_t num_heads_,
    int64_t head_dim_,
    const HeadNormOptions& options_)
    : options(options_), num_heads(num_heads_), head_dim(head_dim_) {
  HeadNormImpl::reset();
}

void HeadNormImpl::reset() {
  checks::check_positive(kHeadNorm, "num_heads", num_heads);
  checks::check_positive(kHeadNorm, "head_dim", head_dim);
  TORCH_CHECK(
      options.eps() >= 0 && std::isfinite(options.eps()),
      kHeadNorm,
      ": expected a finite eps >= 0, but got ",
      options.eps());
  TORCH_CHECK(
      options.weight() || (!options.bias() && !options.unit_offset()),
      kHeadNorm,
      ": expected weight = true beside bias or unit_offset, but got false");
  std::vector<int64_t> sizes = {head_dim};
  if (options.scope() == HeadNormScope::kAllHeads) {
    sizes = {num_heads * head_dim};
  } else if (options.scope() == HeadNormScope::kHeadWeights) {
    sizes = {num_heads, head_dim};
  }
  const auto made = [&](const char* name, bool wanted) -> torch::Tensor& {
    return register_parameter(
        name,
        wanted ? torch::empty(sizes) : torch::Tensor(),
        /*requires_grad=*/wanted);
  };
  weight = made("weight", options.weight());
  bias = made("bias", options.bias());
  reset_parameters();
}

void HeadNormImpl::reset_parameters() {
  const torch::NoGradGuard no_grad;
  if (weight.defined()) {
    weight.fill_(options.unit_offset() ? 0 : 1);
  }
  if (bias.defined()) {
    bias.zero_();
  }
}

void HeadNormImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::HeadNorm(num_heads=" << num_heads
         << ", head_dim=" << head_dim << ", kind=" << options.kind()
         << ", scope=" << options.scope() << ", eps=" << options.eps() << ")";
}

torch::Tensor HeadNormImpl::forward(const torch::Tensor& x) {
  TORCH_CHECK(
      x.defined() && x.dim() == 4 && x.size(1) == num_heads &&
          x.size(3) == head_dim,
      kHeadNorm,
      ": expected input of shape (B, ",
      num_heads,
      ", T, ",
      head_dim,
      "), but got ",
      x.defined() ? c10::str(x.sizes()) : "an undefined tensor");
  const auto dtype = x.scalar_type();
  const auto compute = dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
  // (B, T, H, D), or (B, T, H * D) where heads are normalised together.
  auto rows = x.transpose(1, 2).to(compute);
  if (options.scope() == HeadNormScope::kAllHeads) {
    rows = rows.flatten(2);
  }
  // Other processes may have some of the heads. A weight that all heads share
  // has gradients from all processes, and so has one that other processes
  // copied.
  const auto own = [&](const torch::Tensor& each) {
    if (split_ == nullptr) {
      return each;
    }
    return options.scope() == HeadNormScope::kHead ? split_->enter(each)
        : of_keys_                                 ? split_->enter_keys(each)
                                                   : each;
  };
  const bool joins = options.scope() == HeadNormScope::kAllHeads;
  auto result = normalized(rows, options, joins ? split_ : nullptr);
  if (weight.defined()) {
    const auto factor = own(weight).to(compute);
    result = result * (options.unit_offset() ? factor + 1 : factor);
  }
  if (bias.defined()) {
    result = result + own(bias).to(compute);
  }
  return result.reshape({x.size(0), x.size(2), num_heads, head_dim})
      .to(dtype)
      .transpose(1, 2);
}

} // namespace torch_attention
