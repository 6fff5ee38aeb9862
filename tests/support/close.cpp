#include <support/close.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

namespace torch_attention::testing {

namespace {

std::string kind(const torch::Tensor& tensor) {
  return tensor.defined()
      ? c10::str(torch::toString(tensor.scalar_type()), tensor.sizes())
      : "an undefined tensor";
}

bool is_same_kind(const torch::Tensor& a, const torch::Tensor& b) {
  return a.defined() && b.defined() && a.scalar_type() == b.scalar_type() &&
      a.sizes() == b.sizes();
}

std::string kinds_differ(
    const torch::Tensor& actual,
    const torch::Tensor& expected) {
  return c10::str("; got ", kind(actual), ", expected ", kind(expected));
}

/// Returns (rtol, atol) of torch.testing.assert_close for the dtype.
std::pair<double, double> default_tolerance(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kFloat:
      return {1.3e-6, 1e-5};
    case torch::kDouble:
      return {1e-7, 1e-7};
    case torch::kHalf:
      return {1e-3, 1e-3};
    case torch::kBFloat16:
      return {1.6e-2, 1e-3};
    default:
      return {0, 0};
  }
}

torch::Tensor flat(const torch::Tensor& tensor, torch::ScalarType dtype) {
  return tensor.detach().to(torch::kCPU, dtype).contiguous().view(-1);
}

/// Returns the bits as integers.
torch::Tensor flat_bits(const torch::Tensor& tensor) {
  const auto values = flat(tensor, tensor.scalar_type());
  switch (tensor.element_size()) {
    case 1:
      return values.view(torch::kByte);
    case 2:
      return values.view(torch::kShort);
    case 4:
      return values.view(torch::kInt);
    default:
      return values.view(torch::kLong);
  }
}

/// Returns the index, "[1, 0, 2]", of the element at `offset` in row-major
/// order.
std::string index_of(int64_t offset, torch::IntArrayRef shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    index[i] = offset % shape[i];
    offset /= shape[i];
  }
  return c10::str(torch::IntArrayRef(index));
}

std::string describe_element(
    const torch::Tensor& actual,
    const torch::Tensor& expected,
    int64_t offset) {
  const auto value = [&](const torch::Tensor& tensor) {
    return flat(tensor, torch::kDouble)[offset].item<double>();
  };
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  const auto a = value(actual);
  const auto e = value(expected);
  text << index_of(offset, expected.sizes()) << ": got " << a << ", expected "
       << e << ", difference " << a - e;
  return text.str();
}

} // namespace

IsCloseTo::IsCloseTo(torch::Tensor expected, Tolerance tolerance)
    : expected_(std::move(expected)), tolerance_(std::move(tolerance)) {
  if (expected_.defined()) {
    const auto [rtol, atol] = default_tolerance(expected_.scalar_type());
    tolerance_.rtol(tolerance_.rtol().value_or(rtol));
    tolerance_.atol(tolerance_.atol().value_or(atol));
  }
}

bool IsCloseTo::match(const torch::Tensor& actual) const {
  difference_.clear();
  if (!is_same_kind(actual, expected_)) {
    difference_ = kinds_differ(actual, expected_);
    return false;
  }
  const auto a = flat(actual, torch::kDouble);
  const auto e = flat(expected_, torch::kDouble);
  const auto* a_data = a.const_data_ptr<double>();
  const auto* e_data = e.const_data_ptr<double>();
  int64_t bad = 0;
  int64_t worst = 0;
  double worst_excess = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const bool both_nan = std::isnan(a_data[i]) && std::isnan(e_data[i]);
    if (a_data[i] == e_data[i] || (both_nan && tolerance_.equal_nan())) {
      continue;
    }
    const auto excess = std::abs(a_data[i] - e_data[i]) -
        (*tolerance_.atol() + *tolerance_.rtol() * std::abs(e_data[i]));
    // No tolerance covers infinity against a number, or NaN.
    const bool is_number = std::isfinite(a_data[i]) && std::isfinite(e_data[i]);
    if (is_number && excess <= 0) {
      continue;
    }
    const auto rank =
        is_number ? excess : std::numeric_limits<double>::infinity();
    if (bad == 0 || rank > worst_excess) {
      worst = i;
      worst_excess = rank;
    }
    ++bad;
  }
  if (bad > 0) {
    difference_ = c10::str(
        "; ",
        bad,
        " of ",
        a.numel(),
        " elements are not, worst ",
        describe_element(actual, expected_, worst));
  }
  return bad == 0;
}

std::string IsCloseTo::describe() const {
  if (!expected_.defined()) {
    return "is close to an undefined tensor";
  }
  return c10::str(
      "is close to ",
      kind(expected_),
      ", rtol ",
      *tolerance_.rtol(),
      ", atol ",
      *tolerance_.atol(),
      difference_);
}

void check_all_close(
    const std::vector<torch::Tensor>& actual,
    const std::vector<torch::Tensor>& expected,
    const Tolerance& tolerance) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(actual[i], IsCloseTo(expected[i], tolerance));
  }
}

IsEqualTo::IsEqualTo(torch::Tensor expected) : expected_(std::move(expected)) {}

bool IsEqualTo::match(const torch::Tensor& actual) const {
  difference_.clear();
  if (!is_same_kind(actual, expected_)) {
    difference_ = kinds_differ(actual, expected_);
    return false;
  }
  const auto differ =
      flat_bits(actual).ne(flat_bits(expected_)).nonzero().view(-1);
  if (differ.numel() > 0) {
    difference_ = c10::str(
        "; ",
        differ.numel(),
        " of ",
        actual.numel(),
        " elements are not, the first ",
        describe_element(actual, expected_, differ[0].item<int64_t>()));
  }
  return differ.numel() == 0;
}

std::string IsEqualTo::describe() const {
  return "equals bit for bit " + kind(expected_) + difference_;
}

IsCloseTo IsPrinted(const torch::Tensor& expected, int decimals) {
  return IsCloseTo(
      expected, Tolerance(2e-6, 0.5 * std::pow(10.0, -decimals) + 2e-6));
}

} // namespace torch_attention::testing
