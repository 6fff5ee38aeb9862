#include <harness/roof.h>

#include <format_text.h>

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sum.h>
#include <torch/utils.h>

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace torch_attention::benchmarks {

namespace {

constexpr double kBytesOfFloat = sizeof(float);

/// Few rounds, since the roof is measured again beside every case.
const tools::Effort kRoofEffort{0.5, 5, 9, 1e-2};

tools::Spread rate_of(const std::function<void()>& function, double amount) {
  const auto seconds = tools::interleave({function}, kRoofEffort).front();
  std::vector<double> rates;
  for (const auto value : seconds) {
    rates.push_back(amount / value);
  }
  return tools::spread_of(std::move(rates));
}

double sgemm_flops(int64_t size) {
  const auto n = static_cast<double>(size);
  return 2 * n * n * n;
}

/// The number of products in a run. The first comes after other work, with cold
/// caches: among several it counts little.
constexpr int kProducts = 4;

/// Returns LibTorch's linear layer by its copy of oneDNN, which on processors
/// that are not Intel's multiplies faster than `at::mm`; none if it lacks it.
std::optional<c10::OperatorHandle> onednn_linear() {
  if (!at::globalContext().userEnabledMkldnn()) {
    return std::nullopt;
  }
  return c10::Dispatcher::singleton().findSchema(
      {"mkldnn::_linear_pointwise", ""});
}

/// Returns a number of floats that no cache holds.
int64_t floats_beyond_caches() {
  constexpr int64_t kLeastBytes = 256 << 20;
  constexpr int64_t kMostBytes = 1 << 30;
  const auto cache = static_cast<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE));
  const auto bytes = std::clamp(4 * cache, kLeastBytes, kMostBytes);
  return bytes / static_cast<int64_t>(sizeof(float));
}

} // namespace

Roof::Roof() {
  constexpr int64_t kColumns = 4096;
  choose_product();
  const auto rows = floats_beyond_caches() / kColumns;
  matrix_ = at::ones({rows, kColumns});
  vector_ = at::ones({kColumns});
  result_ = at::empty({rows});
  const auto by_sum = rate_of(reach(Bound::kReading), 1);
  sum_reads_faster_ = false;
  const auto by_product = rate_of(reach(Bound::kReading), 1);
  sum_reads_faster_ = by_sum.median >= by_product.median;
}

void Roof::choose_product() {
  constexpr double kEnough = 1.02;
  const torch::NoGradGuard no_grad;
  double best = 0;
  for (const int64_t size : {1024, 1536, 2048, 3072, 4096}) {
    const auto a = at::rand({size, size});
    const auto b = at::rand({size, size});
    auto c = at::empty({size, size});
    std::vector<std::pair<const char*, std::function<void()>>> products{
        {"at::mm", [a, b, c]() mutable { at::mm_out(c, a, b); }}};
    const auto linear = onednn_linear();
    if (linear) {
      products.emplace_back("oneDNN", [a, b, linear] {
        // No bias, and no function that is applied to the result.
        torch::jit::Stack stack{
            a,
            b,
            c10::IValue(),
            std::string("none"),
            c10::List<std::optional<at::Scalar>>(),
            std::string()};
        linear->callBoxed(stack);
      });
    }
    bool is_better = false;
    for (const auto& [name, multiply] : products) {
      const auto rate = rate_of(multiply, sgemm_flops(size)).median;
      if (size_ == 0 || rate >= best * kEnough) {
        best = rate;
        size_ = size;
        name_ = name;
        multiply_ = multiply;
        is_better = true;
      }
    }
    if (!is_better) {
      break;
    }
  }
}

std::function<void()> Roof::reach(Bound bound) const {
  if (bound == Bound::kProducts) {
    return [multiply = multiply_] {
      for (int i = 0; i < kProducts; ++i) {
        multiply();
      }
    };
  }
  if (sum_reads_faster_) {
    return [a = matrix_] { at::sum(a); };
  }
  return [a = matrix_, b = vector_, c = result_]() mutable {
    at::mv_out(c, a, b);
  };
}

double Roof::amount(Bound bound) const {
  return bound == Bound::kProducts
      ? kProducts * sgemm_flops(size_)
      : kBytesOfFloat * static_cast<double>(matrix_.numel());
}

tools::Spread Roof::products() const {
  return rate_of(reach(Bound::kProducts), amount(Bound::kProducts));
}

tools::Spread Roof::reading() const {
  return rate_of(reach(Bound::kReading), amount(Bound::kReading));
}

tools::Spread Roof::triad() const {
  constexpr double kArrays = 3;
  auto a = at::ones_like(matrix_);
  const auto c = at::ones_like(matrix_);
  return rate_of(
      [&] { at::add_out(a, matrix_, c, 2); },
      kArrays * kBytesOfFloat * static_cast<double>(matrix_.numel()));
}

std::string Roof::product() const {
  return format_text("{}, {} rows", name_, size_);
}

} // namespace torch_attention::benchmarks
