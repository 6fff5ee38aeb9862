#include <torch_attention/nn/modules/relative_bias.h>

#include <check.h>
#include <kernels/plain.h>
#include <nn/checks.h>
#include <undrawn_weights.h>

#include <torch/nn/init.h>

#include <cmath>
#include <limits>
#include <ostream>

namespace torch_attention {

namespace {

constexpr const char* kRelativeBias = "RelativeBias";
constexpr const char* kWindowBias = "WindowBias";
constexpr double kStandardDeviation = 0.02;

/// Returns the number of buckets of one direction.
int64_t buckets_of_direction(const RelativeBiasOptions& options) {
  return options.bidirectional() ? options.num_buckets() / 2
                                 : options.num_buckets();
}

/// Returns the distance below which each distance has a bucket.
int64_t exact_distances(const RelativeBiasOptions& options) {
  return buckets_of_direction(options) / 2;
}

/// Returns the bucket of each distance from query to key, int64, by the float32
/// operations of `transformers`, whose rounding affects where buckets begin.
torch::Tensor buckets_of(
    const RelativeBiasOptions& options,
    const torch::Tensor& from_query_to_key) {
  const auto buckets = buckets_of_direction(options);
  const auto exact = exact_distances(options);
  const auto distance = options.bidirectional()
      ? from_query_to_key.abs()
      : from_query_to_key.clamp_max(0).neg();
  const auto first = static_cast<double>(exact);
  const auto growth =
      std::log(static_cast<double>(options.max_distance()) / first);
  const auto far = (torch::log(distance.to(torch::kFloat) / first) / growth *
                    static_cast<double>(buckets - exact))
                       .to(torch::kLong)
                       .add(exact)
                       .clamp_max(buckets - 1);
  const auto bucket = torch::where(distance < exact, distance, far);
  return options.bidirectional()
      ? bucket + (from_query_to_key > 0).to(torch::kLong) * buckets
      : bucket;
}

} // namespace

RelativeBiasImpl::RelativeBiasImpl(int64_t num_heads)
    : RelativeBiasImpl(RelativeBiasOptions(num_heads)) {}

RelativeBiasImpl::RelativeBiasImpl(const RelativeBiasOptions& options_)
    : options(options_) {
  RelativeBiasImpl::reset();
}

void RelativeBiasImpl::reset() {
  checks::check_positive(kRelativeBias, "num_heads", options.num_heads());
  TORCH_ATTENTION_CHECK(
      exact_distances(options) >= 1 &&
          (!options.bidirectional() || options.num_buckets() % 2 == 0),
      "RelativeBias: expected num_buckets of at least 2, or at least 4 "
      "and even if bidirectional, but got {}",
      options.num_buckets());
  TORCH_ATTENTION_CHECK(
      options.max_distance() > exact_distances(options),
      "RelativeBias: expected max_distance > {}, half the buckets of one "
      "direction, but got {}",
      exact_distances(options),
      options.max_distance());
  weight = register_parameter(
      "weight", torch::empty({options.num_buckets(), options.num_heads()}));
  if (!UndrawnWeights::are_wanted()) {
    reset_parameters();
  }
}

void RelativeBiasImpl::reset_parameters() {
  torch::nn::init::normal_(weight, 0, kStandardDeviation);
}

void RelativeBiasImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::RelativeBias(num_heads=" << options.num_heads()
         << ", num_buckets=" << options.num_buckets()
         << ", max_distance=" << options.max_distance() << std::boolalpha
         << ", bidirectional=" << options.bidirectional() << ")";
}

torch::Tensor RelativeBiasImpl::forward(int64_t T, int64_t S, int64_t first) {
  TORCH_ATTENTION_CHECK(
      T >= 0 && S >= 0 && first >= 0 &&
          first <= std::numeric_limits<int64_t>::max() - T,
      "RelativeBias: expected T, S and first >= 0, but got {}, {} and {}",
      T,
      S,
      first);
  const auto queries = torch::arange(first, first + T, torch::kLong);
  const auto keys = torch::arange(S, torch::kLong);
  // On the CPU, so that all devices have the same buckets.
  const auto buckets = kernels::sent_to(
      weight.device(), buckets_of(options, keys - queries.unsqueeze(1)));
  return weight.index({buckets}).permute({2, 0, 1}).unsqueeze(0);
}

WindowBiasImpl::WindowBiasImpl(int64_t num_heads, int64_t height, int64_t width)
    : WindowBiasImpl(WindowBiasOptions(num_heads, height, width)) {}

WindowBiasImpl::WindowBiasImpl(const WindowBiasOptions& options_)
    : options(options_) {
  WindowBiasImpl::reset();
}

void WindowBiasImpl::reset() {
  checks::check_positive(kWindowBias, "num_heads", options.num_heads());
  checks::check_positive(kWindowBias, "height", options.height());
  checks::check_positive(kWindowBias, "width", options.width());
  constexpr int64_t kMost = int64_t{1} << 15;
  TORCH_ATTENTION_CHECK(
      options.height() <= kMost && options.width() <= kMost,
      "WindowBias: expected height and width <= {}, but got {} and {}",
      kMost,
      options.height(),
      options.width());
  relative_position_bias_table = register_parameter(
      "relative_position_bias_table",
      torch::empty(
          {(2 * options.height() - 1) * (2 * options.width() - 1),
           options.num_heads()}));
  if (!UndrawnWeights::are_wanted()) {
    reset_parameters();
  }
}

void WindowBiasImpl::reset_parameters() {
  torch::nn::init::normal_(relative_position_bias_table, 0, kStandardDeviation);
}

void WindowBiasImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::WindowBias(num_heads=" << options.num_heads()
         << ", height=" << options.height() << ", width=" << options.width()
         << ")";
}

torch::Tensor WindowBiasImpl::forward() {
  const auto W = options.width();
  const auto N = options.height() * W;
  const auto token = torch::arange(N, torch::kLong);
  const auto distances = [](const torch::Tensor& x, int64_t size) {
    return x.unsqueeze(1) - x + (size - 1);
  };
  const auto rows =
      distances(token.div(W, /*rounding_mode=*/"floor"), options.height());
  const auto columns = distances(token.remainder(W), W);
  const auto places =
      (rows * (2 * W - 1) + columns).to(relative_position_bias_table.device());
  return relative_position_bias_table.index({places})
      .permute({2, 0, 1})
      .unsqueeze(0);
}

} // namespace torch_attention
