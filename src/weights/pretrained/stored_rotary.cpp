#include <weights/pretrained/stored_rotary.h>

#include <check.h>
#include <format_text.h>
#include <torch_attention/weights/read.h>
#include <weights/pretrained/rotary.h>
#include <weights/text.h>

#include <cmath>
#include <vector>

namespace torch_attention::weights::pretrained {

namespace {

/// Returns the tensor whose name ends so, in float64; undefined if there is
/// none.
torch::Tensor find_stored(
    const std::string& file,
    const std::string& name,
    int64_t dims,
    int64_t size) {
  torch::Tensor found;
  for (const auto& item : read_weights(file, ReadOptions().mmap(true))) {
    const auto& value = item.value();
    if (!ends_with_names(item.key(), name)) {
      continue;
    }
    TORCH_ATTENTION_CHECK(
        value.is_floating_point() && value.dim() == dims &&
            value.size(-1) == size,
        "expected a floating-point \"{}\" in \"{}\", with {} as its last of {} "
        "sizes, but got one of {} and {}",
        item.key(),
        file,
        size,
        dims,
        c10::str(value.sizes()),
        c10::str(value.scalar_type()));
    const auto numbers = value.to(torch::kDouble);
    TORCH_ATTENTION_CHECK(
        !found.defined() || found.equal(numbers),
        "expected the same \"{}\" in all layers of \"{}\"",
        name,
        file);
    found = numbers;
  }
  return found;
}

torch::Tensor computed_frequencies(const RotaryOptions& rotary, int64_t dim) {
  return torch::pow(
      rotary.theta(),
      torch::arange(0, dim, 2, torch::kDouble) / static_cast<double>(-dim));
}

void take_frequencies(const torch::Tensor& stored, RotaryOptions& rotary) {
  const auto computed = computed_frequencies(rotary, 2 * stored.size(0));
  // Those of float32 files are rounded.
  if ((stored - computed).abs().le(computed * 1e-6).all().item<bool>()) {
    return;
  }
  TORCH_CHECK(
      stored.isfinite().all().item<bool>() && stored.ge(0).all().item<bool>(),
      "expected finite frequencies >= 0 of the rotary embedding in the file");
  // Half precision has 0 for small ones.
  const auto quotients =
      torch::where(stored.gt(0), computed / stored, kStillFactor).contiguous();
  const auto* begin = quotients.const_data_ptr<double>();
  set_frequency_factors({begin, begin + quotients.numel()}, rotary);
}

} // namespace

void take_stored_rotary(
    const std::string& file,
    const StoredRotary& stored,
    int64_t head_dim,
    RotaryOptions& rotary) {
  const auto dim = rotary.dim().value_or(head_dim);
  if (!stored.frequencies.empty()) {
    const auto frequencies =
        find_stored(file, stored.frequencies, /*dims=*/1, dim / 2);
    if (frequencies.defined()) {
      take_frequencies(frequencies, rotary);
    }
  }
  if (stored.angles.empty()) {
    return;
  }
  const auto table = find_stored(file, stored.angles, /*dims=*/2, dim);
  if (!table.defined()) {
    return;
  }
  const auto angles = torch::outer(
      torch::arange(table.size(0), torch::kDouble),
      computed_frequencies(rotary, dim));
  const auto difference =
      (table - torch::cat({angles.sin(), angles.cos()}, 1)).abs().max();
  TORCH_ATTENTION_CHECK(
      difference.item<double>() < 1e-6,
      "expected the sines and cosines of the positions in \"{}\" of \"{}\", but "
      "got others, by up to {}; files in half precision have rounded ones",
      stored.angles,
      file,
      difference.item<double>());
}

} // namespace torch_attention::weights::pretrained
