#include <torch_attention/nn/modules/head_norm.h>

#include <check.h>
#include <kernels/elements.h>
#include <kernels/rms_norm.h>
#include <nn/checks.h>
#include <nn/modules/head_norm.h>
#include <nn/modules/partition.h>

#include <c10/util/Exception.h>

#include <ostream>
#include <vector>

namespace torch_attention {

namespace {

constexpr const char* kHeadNorm = "HeadNorm";

} // namespace

HeadNormImpl::HeadNormImpl(
    int64_t num_heads_,
    int64_t head_dim_,
    const HeadNormOptions& options_)
    : options(options_),
      num_heads(num_heads_),
      head_dim(head_dim_),
      partition_(detail::whole_partition()) {
  HeadNormImpl::reset();
}

void HeadNormImpl::reset() {
  checks::check_positive(kHeadNorm, "num_heads", num_heads);
  checks::check_positive(kHeadNorm, "head_dim", head_dim);
  checks::check_eps(kHeadNorm, options.eps());
  TORCH_CHECK(
      options.weight() || (!options.bias() && !options.unit_offset()),
      "HeadNorm: expected weight = true beside bias or unit_offset, but "
      "got false");
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
  return detail::normalised(*this, x, Kernel::kAuto);
}

torch::Tensor detail::normalised(
    HeadNormImpl& module,
    const torch::Tensor& x,
    Kernel kernel) {
  const auto& partition = *PartitionAccess::of(module);
  const auto H = module.num_heads;
  const auto D = module.head_dim;
  TORCH_ATTENTION_CHECK(
      x.defined() && x.dim() == 4 && x.size(1) == H && x.size(3) == D,
      "HeadNorm: expected input of shape (B, {}, T, {}), but got {}",
      H,
      D,
      x.defined() ? c10::str(x.sizes()) : "an undefined tensor");
  const auto& options = module.options;
  const bool joins = options.scope() == HeadNormScope::kAllHeads;
  // (B, T, H, D), or (B, T, H * D) where heads are normalised together.
  auto rows = x.transpose(1, 2);
  if (joins) {
    rows = rows.flatten(2);
  }
  // Sums gradients over the processes, for weights that all heads share and for
  // weights of key heads that several processes compute.
  const auto own = [&](const torch::Tensor& each) {
    return !each.defined()                        ? each
        : options.scope() == HeadNormScope::kHead ? partition.enter_weight(each)
        : PartitionAccess::is_norm_of_keys(module) ? partition.enter_keys(each)
                                                   : each;
  };
  const kernels::RmsNorm norm{
      own(module.weight),
      own(module.bias),
      options.eps(),
      options.unit_offset()};
  const auto compute = [&] {
    const bool is_local = !joins || partition.is_whole();
    if (options.kind() == HeadNormKind::kRms && is_local) {
      return kernels::rms_norm(rows, norm, kernel);
    }
    const auto wide = rows.to(kernels::compute_dtype(x.scalar_type()));
    if (options.kind() == HeadNormKind::kRms) {
      const auto mean_square =
          partition.mean_of_heads(wide.square().mean(-1, /*keepdim=*/true));
      return kernels::normalised_by(wide, mean_square, norm);
    }
    return kernels::weighted(
        torch::layer_norm(wide, {wide.size(-1)}, {}, {}, norm.eps), norm);
  };
  return compute()
      .reshape({x.size(0), x.size(2), H, D})
      .to(x.scalar_type())
      .transpose(1, 2);
}

} // namespace torch_attention
