// Measures attention alone by shape and dtype, ours against LibTorch's, with
// Google Benchmark:
//
//   kernels --benchmark_filter=forward/.*/float32 --benchmark_format=json
//
// The cases do not take turns: for ratios use `torch-attention bench`.

#include <torch_attention/nn/functional/attention.h>

#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <benchmark/benchmark.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace F = torch_attention::functional;

/// B batch, H heads, T tokens, D head_dim; causal self-attention.
struct Shape {
  int64_t B = 1;
  int64_t H = 1;
  int64_t T = 1;
  int64_t D = 1;

  std::string name() const {
    return "B" + std::to_string(B) + "_H" + std::to_string(H) + "_T" +
        std::to_string(T) + "_D" + std::to_string(D);
  }

  /// Counts the visible scores only: two products forward, five backward.
  double flops(bool backward) const {
    const auto pairs = static_cast<double>(T) * static_cast<double>(T + 1) / 2;
    return static_cast<double>(2 * B * H * D) * pairs * (backward ? 7 : 2);
  }
};

/// An attention function that is compared.
using Attend = std::function<torch::Tensor(
    const torch::Tensor&,
    const torch::Tensor&,
    const torch::Tensor&)>;

struct Subject {
  std::string name;
  Attend attend;
};

std::vector<Subject> subjects(double dropout) {
  return {
      {"ours",
       [dropout](
           const torch::Tensor& q,
           const torch::Tensor& k,
           const torch::Tensor& v) {
         return F::scaled_dot_product_attention(
             q,
             k,
             v,
             F::ScaledDotProductAttentionFuncOptions().causal(true).dropout(
                 dropout));
       }},
      {"sdpa",
       [dropout](
           const torch::Tensor& q,
           const torch::Tensor& k,
           const torch::Tensor& v) {
         return at::scaled_dot_product_attention(
             q, k, v, /*attn_mask=*/{}, dropout, /*is_causal=*/true);
       }}};
}

void report_rate(benchmark::State& state, const Shape& shape, bool backward) {
  state.counters["FLOP/s"] = benchmark::Counter(
      shape.flops(backward), benchmark::Counter::kIsIterationInvariantRate);
}

void forward(
    benchmark::State& state,
    const Attend& attend,
    const Shape& shape,
    torch::ScalarType dtype) {
  torch::NoGradGuard no_grad;
  const auto draw = [&] {
    return at::randn({shape.B, shape.H, shape.T, shape.D}).to(dtype);
  };
  const auto q = draw();
  const auto k = draw();
  const auto v = draw();
  for (auto _ : state) {
    benchmark::DoNotOptimize(attend(q, k, v));
  }
  report_rate(state, shape, /*backward=*/false);
}

void forward_backward(
    benchmark::State& state,
    const Attend& attend,
    const Shape& shape,
    torch::ScalarType dtype) {
  const auto draw = [&] {
    return at::randn({shape.B, shape.H, shape.T, shape.D}).to(dtype);
  };
  std::vector<torch::Tensor> leaves{draw(), draw(), draw()};
  const auto cotangent = draw();
  for (auto& leaf : leaves) {
    leaf.requires_grad_();
  }
  for (auto _ : state) {
    for (auto& leaf : leaves) {
      leaf.mutable_grad().reset();
    }
    attend(leaves[0], leaves[1], leaves[2]).backward(cotangent);
  }
  report_rate(state, shape, /*backward=*/true);
}

template <typename Measure>
void add(const std::string& name, Measure measure) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(measure))
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

void add_all() {
  const std::vector<std::pair<std::string, torch::ScalarType>> dtypes{
      {"float32", torch::kFloat},
      {"float64", torch::kDouble},
      {"bfloat16", torch::kBFloat16},
      {"float16", torch::kHalf}};
  const std::vector<Shape> forward_shapes{
      {32, 12, 16, 64},
      {8, 12, 128, 64},
      {8, 12, 1024, 64},
      {1, 12, 4096, 64},
      {1, 2, 4096, 64},
      {4, 8, 1024, 32},
      {4, 10, 1024, 80},
      {4, 8, 1024, 128},
      {4, 4, 1024, 256}};
  const std::vector<Shape> backward_shapes{
      {32, 12, 16, 64}, {8, 12, 128, 64}, {4, 12, 1024, 64}, {4, 8, 1024, 128}};
  for (const auto& [dtype_name, dtype] : dtypes) {
    for (const auto& shape : forward_shapes) {
      for (const auto& subject : subjects(/*dropout=*/0)) {
        add("forward/" + subject.name + "/" + dtype_name + "/" + shape.name(),
            [=, dtype = dtype](benchmark::State& state) {
              forward(state, subject.attend, shape, dtype);
            });
      }
    }
    for (const auto& shape : backward_shapes) {
      for (const auto dropout : {0.0, 0.1}) {
        for (const auto& subject : subjects(dropout)) {
          add((dropout > 0 ? "forward_backward_dropout/"
                           : "forward_backward/") +
                  subject.name + "/" + dtype_name + "/" + shape.name(),
              [=, dtype = dtype](benchmark::State& state) {
                forward_backward(state, subject.attend, shape, dtype);
              });
        }
      }
    }
  }
}

} // namespace

int main(int argc, char** argv) {
  add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
