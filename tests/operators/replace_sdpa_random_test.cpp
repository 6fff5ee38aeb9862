// Random calls of LibTorch's attention: its own results and ours.

#include <operators/replaced_sdpa.h>
#include <support/close.h>
#include <support/test.h>

#include <limits>
#include <random>
#include <sstream>

namespace replace_sdpa_random_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Sizes = std::vector<int64_t>;

/// Arguments of at::scaled_dot_product_attention.
struct Call {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  std::optional<torch::Tensor> mask;
  bool causal = false;
  std::optional<double> scale;
  bool shares_heads = false;
  bool recorded = false;

  std::vector<torch::Tensor> inputs() const {
    std::vector<torch::Tensor> inputs{query, key, value};
    if (mask && mask->requires_grad()) {
      inputs.push_back(*mask);
    }
    return inputs;
  }

  std::string description() const {
    std::ostringstream text;
    text << query.scalar_type() << " query " << query.sizes() << query.strides()
         << " key " << key.sizes() << key.strides() << " value "
         << value.sizes() << value.strides() << " mask ";
    if (mask) {
      text << mask->scalar_type() << mask->sizes();
    }
    text << " causal " << causal << " scale " << scale.value_or(-99)
         << " shares " << shares_heads << " recorded " << recorded;
    return text.str();
  }
};

class Draw {
 public:
  explicit Draw(unsigned seed) : engine_(seed) {}

  Call call() {
    const auto dtype = one_of<torch::ScalarType>(
        {torch::kFloat,
         torch::kFloat,
         torch::kDouble,
         torch::kBFloat16,
         torch::kHalf});
    const auto rank = one_of<size_t>({2, 3, 4, 4, 4, 4, 5});
    const auto T = one_of<int64_t>({1, 2, 5, 17, 33});
    const auto S = chance(0.4) ? T : one_of<int64_t>({1, 3, 5, 17, 40});
    const auto D = one_of<int64_t>({1, 2, 8, 16, 24});
    const auto E = chance(0.7) ? D : one_of<int64_t>({1, 4, 9});
    Sizes of_query;
    for (size_t i = 2; i < rank; ++i) {
      of_query.push_back(one_of<int64_t>({1, 2, 3}));
    }
    auto of_key = of_query;
    Call call;
    call.shares_heads = rank > 2 && chance(0.3);
    if (call.shares_heads) {
      of_query.back() *= one_of<int64_t>({1, 2, 3});
    } else if (rank > 2 && chance(0.15)) {
      of_key[one_of<size_t>({0, of_key.size() - 1})] = 1;
    } else if (rank > 2 && chance(0.1)) {
      of_key.erase(of_key.begin());
    }
    call.query = tensor(of_query, T, D, dtype);
    call.key = tensor(of_key, S, D, dtype);
    call.value = tensor(of_key, S, E, dtype);
    call.causal = chance(0.3);
    if (chance(0.3)) {
      // LibTorch's kernel hides before it scales: with a factor that is not
      // positive, what it hides gives NaN.
      call.scale = call.causal ? 0.3 : one_of<double>({0.3, -0.5, 0.0, 1.0});
    }
    call.recorded = chance(0.6);
    if (chance(0.5)) {
      call.mask = mask(of_query, T, S, dtype);
    }
    if (call.recorded) {
      for (auto* x : {&call.query, &call.key, &call.value}) {
        x->requires_grad_();
      }
      if (call.mask && call.mask->is_floating_point() && chance(0.4)) {
        call.mask->requires_grad_();
      }
    }
    return call;
  }

 private:
  bool chance(double probability) {
    return std::uniform_real_distribution<>()(engine_) < probability;
  }

  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    std::uniform_int_distribution<size_t> index(0, choices.size() - 1);
    return *(choices.begin() + index(engine_));
  }

  torch::Tensor tensor(
      Sizes sizes,
      int64_t tokens,
      int64_t features,
      torch::ScalarType dtype) {
    const bool swaps = !sizes.empty() && chance(0.3);
    const bool skips = chance(0.2);
    const bool cuts = chance(0.2);
    sizes.push_back(cuts ? tokens + 3 : tokens);
    sizes.push_back(skips ? 2 * features : features);
    if (swaps) {
      std::swap(sizes[sizes.size() - 2], sizes[sizes.size() - 3]);
    }
    auto x = torch::randn(sizes, dtype);
    x = swaps ? x.transpose(-2, -3) : x;
    x = skips ? x.slice(-1, 0, 2 * features, 2) : x;
    return cuts ? x.slice(-2, 1, tokens + 1) : x;
  }

  torch::Tensor mask(
      Sizes sizes,
      int64_t T,
      int64_t S,
      torch::ScalarType dtype) {
    if (chance(0.5)) {
      sizes.clear();
    }
    sizes.push_back(T);
    sizes.push_back(S);
    for (auto& size : sizes) {
      size = chance(0.3) ? 1 : size;
    }
    const auto seen = torch::rand(sizes) < 0.7;
    if (chance(0.5)) {
      return seen;
    }
    auto added = torch::randn(sizes, dtype);
    if (chance(0.3)) {
      added.masked_fill_(~seen, -std::numeric_limits<double>::infinity());
    }
    return added;
  }

  std::mt19937 engine_;
};

struct Result {
  /// the output, then the gradients
  std::vector<torch::Tensor> tensors;
  std::vector<int64_t> strides;
  std::string error;
  int64_t ours = 0;
};

Result result_of(const Call& call, const torch::Tensor& factors) {
  Result result;
  const auto before = sdpa_calls();
  try {
    const auto output = at::scaled_dot_product_attention(
        call.query,
        call.key,
        call.value,
        call.mask,
        /*dropout_p=*/0.0,
        call.causal,
        call.scale,
        call.shares_heads);
    for (int64_t i = 0; i < output.dim(); ++i) {
      // Nobody walks along a dimension of one.
      result.strides.push_back(output.size(i) > 1 ? output.stride(i) : 0);
    }
    result.tensors = {output.detach()};
    if (call.recorded) {
      const auto n = output.numel();
      const auto gradients = torch::autograd::grad(
          {output},
          call.inputs(),
          {factors.slice(0, 0, n).view_as(output).to(output.scalar_type())});
      result.tensors.insert(
          result.tensors.end(), gradients.begin(), gradients.end());
    }
  } catch (const c10::Error& error) {
    result.error = error.what_without_backtrace();
  }
  result.ours = sdpa_calls().ours - before.ours;
  return result;
}

/// Both round; sums of many numbers are as far from 0 as the largest of them.
Tolerance tolerance(const torch::Tensor& expected) {
  const auto finite = expected.masked_select(expected.isfinite());
  const auto largest = finite.numel() == 0
      ? 1.0
      : std::max(1.0, finite.abs().max().item<double>());
  switch (expected.scalar_type()) {
    case torch::kDouble:
      return {1e-7, 1e-7 * largest};
    case torch::kFloat:
      return {1e-4, 2e-5 * largest};
    case torch::kHalf:
      return {5e-3, 5e-3 * largest};
    default:
      return {4e-2, 4e-2 * largest};
  }
}

} // namespace

TEST_CASE("A thousand random calls give LibTorch's own results") {
  torch::manual_seed(1);
  Draw draw(/*seed=*/1);
  const auto factors = torch::randn({100000}, torch::kDouble);
  int64_t ours = 0;
  int64_t errors = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto call = draw.call();
    CAPTURE(i, call.description());
    const auto expected = [&] {
      const SdpaReplaced replaced(false);
      return result_of(call, factors);
    }();
    const SdpaReplaced replaced;
    const auto result = result_of(call, factors);
    REQUIRE(expected.ours == 0);
    REQUIRE(result.error == expected.error);
    REQUIRE(result.strides == expected.strides);
    REQUIRE(result.tensors.size() == expected.tensors.size());
    for (size_t j = 0; j < result.tensors.size(); ++j) {
      CAPTURE(j);
      REQUIRE_THAT(
          result.tensors[j],
          IsCloseTo(expected.tensors[j], tolerance(expected.tensors[j])));
    }
    // LibTorch's operator and its backward pass count as two.
    ours += result.ours > 0 ? 1 : 0;
    errors += expected.error.empty() ? 0 : 1;
  }
  // All but those that LibTorch refuses: a mask beside causal.
  CHECK(ours == 1000 - errors);
  CHECK(errors > 10);
  CHECK(errors < 200);
}

} // namespace replace_sdpa_random_test
