#include <device/sequences.h>

#include <device/memory.h>
#include <support/test.h>

#include <algorithm>
#include <limits>

namespace torch_attention::testing {

namespace {

std::vector<int64_t> numbers_of(const torch::Tensor& x) {
  const auto numbers = x.to(torch::kCPU, torch::kLong);
  const auto* first = numbers.const_data_ptr<int64_t>();
  return {first, first + numbers.numel()};
}

} // namespace

TokenRows::TokenRows(int64_t count, int64_t tokens)
    : packed_(false),
      first_(static_cast<size_t>(count)),
      lengths_(static_cast<size_t>(count), tokens) {}

TokenRows::TokenRows(const torch::Tensor& starts, const torch::Tensor& used)
    : packed_(true), first_(numbers_of(starts)) {
  if (used.defined()) {
    lengths_ = numbers_of(used);
    return;
  }
  for (size_t i = 0; i + 1 < first_.size(); ++i) {
    lengths_.push_back(first_[i + 1] - first_[i]);
  }
}

int64_t TokenRows::longest() const {
  return lengths_.empty() ? 0
                          : *std::max_element(lengths_.begin(), lengths_.end());
}

torch::Tensor TokenRows::of(const torch::Tensor& x, int64_t i) const {
  return packed_ ? x.narrow(0, first_[static_cast<size_t>(i)], length(i))
                 : x.select(0, i);
}

torch::Tensor TokenRows::of_logsumexp(const torch::Tensor& x, int64_t i) const {
  return packed_ ? x.narrow(1, first_[static_cast<size_t>(i)], length(i))
                 : x.select(0, i).narrow(1, 0, length(i));
}

torch::Tensor to_double(const torch::Tensor& x) {
  return x.to(torch::kCPU).to(torch::kDouble);
}

torch::Tensor unwritten(torch::IntArrayRef sizes) {
  return torch::full(
      sizes, std::numeric_limits<double>::quiet_NaN(), torch::kDouble);
}

torch::Tensor to_device(const torch::Tensor& x, torch::ScalarType dtype) {
  return x.to(dtype).to(device());
}

void require(bool condition, const char* op, const std::string& expected) {
  TORCH_CHECK(condition, op, ": the device expects ", expected);
}

void require_rows(const char* op, const char* what, const torch::Tensor& x) {
  const bool is_here =
      x.defined() && x.device() == device() && x.layout() == torch::kStrided;
  require(is_here, op, c10::str(what, " on the device"));
  require(
      x.dim() > 0 && x.stride(-1) == 1,
      op,
      c10::str(what, " whose last dimension is contiguous"));
}

void require_counts(
    const char* op,
    const char* what,
    const torch::Tensor& x,
    int64_t size) {
  const bool fits = x.defined() && x.device() == device() &&
      x.scalar_type() == torch::kInt && x.is_contiguous() && x.dim() == 1 &&
      x.size(0) == size;
  require(
      fits,
      op,
      c10::str(what, " of int32, contiguous, on the device, of size ", size));
}

} // namespace torch_attention::testing
