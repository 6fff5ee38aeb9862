#pragma once

// Random calls of LibTorch's attention, and what they give.

#include <support/close.h>
#include <support/test.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace torch_attention::testing {

/// Arguments of LibTorch's attention.
struct SdpaCall {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  std::optional<torch::Tensor> mask;
  bool causal = false;
  std::optional<double> scale;
  bool shares_heads = false;
  bool recorded = false;
  /// by the flash operator, which also returns logsumexp
  bool flash = false;

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
         << " shares " << shares_heads << " recorded " << recorded << " flash "
         << flash;
    return text.str();
  }
};

class DrawSdpa {
  using Sizes = std::vector<int64_t>;

 public:
  explicit DrawSdpa(unsigned seed) : engine_(seed) {}

  /// A small call of at::scaled_dot_product_attention.
  SdpaCall call() {
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
    SdpaCall call;
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
    if (chance(0.5)) {
      call.mask = mask(of_query, T, S, dtype);
    }
    record(call);
    return call;
  }

  /// A small call of the flash operator, which takes fewer shapes and masks.
  SdpaCall flash_call() {
    return fixed_rank(
        /*flash=*/true,
        one_of<int64_t>({1, 2, 5, 17, 33}),
        one_of<int64_t>({1, 3, 5, 17, 40}),
        one_of<int64_t>({1, 2, 8, 16, 24}));
  }

  /// Many keys, which kernels divide, and several tiles of queries.
  SdpaCall large_call() {
    return fixed_rank(
        chance(0.4),
        one_of<int64_t>({1, 3, 40, 90}),
        std::uniform_int_distribution<int64_t>(600, 2100)(engine_),
        one_of<int64_t>({64, 80, 128}));
  }

 private:
  SdpaCall fixed_rank(bool flash, int64_t T, int64_t S, int64_t D) {
    const auto dtype = one_of<torch::ScalarType>(
        {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf});
    const Sizes leading{one_of<int64_t>({1, 2}), one_of<int64_t>({1, 3})};
    SdpaCall call;
    call.flash = flash;
    // LibTorch's flash operator reads steps between features as if they were 1.
    const bool skips = !flash;
    call.query = tensor(leading, T, D, dtype, skips);
    call.key = tensor(leading, S, D, dtype, skips);
    call.value = tensor(leading, S, D, dtype, skips);
    call.causal = chance(0.4);
    if (!call.causal && chance(0.5)) {
      call.mask =
          flash ? torch::randn({T, S}, dtype) : mask(leading, T, S, dtype);
    }
    record(call);
    return call;
  }

  /// Lets some calls have gradients.
  void record(SdpaCall& call) {
    call.recorded = chance(0.6);
    if (!call.recorded) {
      return;
    }
    for (auto* x : {&call.query, &call.key, &call.value}) {
      x->requires_grad_();
    }
    if (call.mask && call.mask->is_floating_point() && !call.flash &&
        chance(0.4)) {
      call.mask->requires_grad_();
    }
  }

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
      torch::ScalarType dtype,
      bool may_skip = true) {
    const bool swaps = !sizes.empty() && chance(0.3);
    const bool skips = may_skip && chance(0.2);
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

struct SdpaResult {
  /// the output, logsumexp of the flash operator, then the gradients
  std::vector<torch::Tensor> tensors;
  std::vector<int64_t> strides;
  std::string error;
};

/// The output, and logsumexp if there is one.
inline std::vector<torch::Tensor> outputs_of(const SdpaCall& x) {
  constexpr double kNoDropout = 0;
  if (x.flash) {
    const auto [output, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        x.query, x.key, x.value, kNoDropout, x.causal, x.mask, x.scale);
    return {output, sums};
  }
  return {at::scaled_dot_product_attention(
      x.query,
      x.key,
      x.value,
      x.mask,
      kNoDropout,
      x.causal,
      x.scale,
      x.shares_heads)};
}

/// Gradients are those of the sum of `factors` times the output.
inline SdpaResult result_of(
    const SdpaCall& call,
    const torch::Tensor& factors) {
  SdpaResult result;
  try {
    const auto outputs = outputs_of(call);
    const auto& output = outputs[0];
    for (int64_t i = 0; i < output.dim(); ++i) {
      // Nobody walks along a dimension of one.
      result.strides.push_back(output.size(i) > 1 ? output.stride(i) : 0);
    }
    for (const auto& x : outputs) {
      result.tensors.push_back(x.detach());
    }
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
  return result;
}

/// Grows with the largest number, since both results round.
inline Tolerance tolerance_of(
    const SdpaCall& call,
    const torch::Tensor& expected) {
  const auto finite = expected.masked_select(expected.isfinite());
  const auto largest = finite.numel() == 0
      ? 1.0
      : std::max(1.0, finite.abs().max().item<double>());
  switch (call.query.scalar_type()) {
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

inline void check_result(
    const SdpaCall& call,
    const SdpaResult& result,
    const SdpaResult& expected) {
  CAPTURE(call.description());
  REQUIRE(result.error == expected.error);
  REQUIRE(result.strides == expected.strides);
  REQUIRE(result.tensors.size() == expected.tensors.size());
  for (size_t i = 0; i < result.tensors.size(); ++i) {
    CAPTURE(i);
    REQUIRE_THAT(
        result.tensors[i],
        IsCloseTo(
            expected.tensors[i], tolerance_of(call, expected.tensors[i])));
  }
}

/// A thousand small calls of at::scaled_dot_product_attention, two hundred of
/// the flash operator, and fifty with many keys.
inline std::vector<SdpaCall> draw_sdpa_calls() {
  torch::manual_seed(1);
  DrawSdpa draw(/*seed=*/1);
  std::vector<SdpaCall> calls;
  for (int i = 0; i < 1000; ++i) {
    calls.push_back(draw.call());
  }
  for (int i = 0; i < 200; ++i) {
    calls.push_back(draw.flash_call());
  }
  for (int i = 0; i < 50; ++i) {
    calls.push_back(draw.large_call());
  }
  return calls;
}

/// Draws the factors of the outputs for `result_of`.
inline torch::Tensor draw_sdpa_factors() {
  return torch::randn({200000}, torch::kDouble);
}

} // namespace torch_attention::testing
