// Tensors that are not plain memory: right results, or an error of ours.

#include <support/close.h>
#include <support/test.h>

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace unusual_tensors_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

torch::Tensor draw(torch::ScalarType dtype = torch::kDouble) {
  return torch::randn({2, 2, 5, 4}, dtype);
}

torch::Tensor attend(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Options& options = Options().causal(true)) {
  return F::scaled_dot_product_attention(query, key, value, options);
}

/// x, whose memory holds its negative.
torch::Tensor negative_view(const torch::Tensor& x) {
  const auto view = at::_neg_view(x.neg());
  REQUIRE(view.is_neg());
  return view;
}

/// The derivative of `fn` in the direction of ones, in forward mode.
torch::Tensor forward_derivative(
    const std::function<torch::Tensor(const torch::Tensor&)>& fn,
    const torch::Tensor& x) {
  namespace forward_ad = torch::autograd::forward_ad;
  const auto level = forward_ad::enter_dual_level();
  const auto at_level = static_cast<int64_t>(level);
  const auto output = fn(at::_make_dual(x, torch::ones_like(x), at_level));
  const auto tangent = std::get<1>(at::_unpack_dual(output, at_level));
  forward_ad::exit_dual_level(level);
  return tangent;
}

torch::Tensor difference_quotient(
    const std::function<torch::Tensor(const torch::Tensor&)>& fn,
    const torch::Tensor& x) {
  constexpr double kStep = 1e-6;
  return (fn(x + kStep) - fn(x - kStep)) / (2 * kStep);
}

} // namespace

TEST_CASE("Forward derivatives are right") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  CAPTURE(kernel);
  torch::manual_seed(1);
  const auto x = draw();
  const auto other = draw();
  const std::vector<Options> all = {
      Options(),
      Options().causal(true).window(2),
      Options().causal(true).chunk(2),
      Options().softcap(1),
      Options().sinks(torch::ones({2}, torch::kDouble)),
      Options().alibi_slopes(torch::ones({2}, torch::kDouble)),
      Options().key_lengths(torch::tensor({int64_t{3}, int64_t{5}}))};
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    const auto options = Options(all[i]).kernel(kernel);
    const auto check = [&](const auto& fn) {
      CHECK_THAT(
          forward_derivative(fn, x),
          IsCloseTo(difference_quotient(fn, x), Tolerance(1e-6, 1e-7)));
    };
    check([&](const torch::Tensor& t) {
      return attend(t, other, other, options);
    });
    check([&](const torch::Tensor& t) {
      return attend(other, t, t * t, options);
    });
  }
  MultiHeadAttention attention(MultiHeadAttentionOptions(4, 4, 8, 2)
                                   .kernel(kernel)
                                   .rotary(RotaryOptions()));
  attention->to(torch::kDouble);
  const auto module = [&](const torch::Tensor& t) {
    return attention->forward(t);
  };
  const auto tokens = torch::randn({2, 3, 4}, torch::kDouble);
  CHECK_THAT(
      forward_derivative(module, tokens),
      IsCloseTo(difference_quotient(module, tokens), Tolerance(1e-6, 1e-7)));
}

TEST_CASE("Tensors made in inference mode are refused where they are saved") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const int64_t size = GENERATE(4, 64);
  CAPTURE(kernel, size);
  torch::Tensor inference;
  torch::Tensor tokens;
  {
    const c10::InferenceMode mode;
    inference = draw();
    tokens = torch::randn({2, 3, size});
  }
  const auto leaf = draw().requires_grad_();
  const auto options = Options().kernel(kernel);
  const auto* message = "made in inference mode; clone() it";
  THROWS_WITH(attend(leaf, inference, inference, options), message);
  THROWS_WITH(attend(leaf, leaf, inference, options), message);
  CHECK_NOTHROW(attend(inference, inference, inference, options));
  CHECK_NOTHROW(attend(leaf, inference.clone(), inference.clone(), options));
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(size, size, 8, 2).kernel(kernel));
  THROWS_WITH(attention(tokens), message);
  CausalAttention causal(CausalAttentionOptions(size, size, 8).kernel(kernel));
  THROWS_WITH(causal(tokens), message);
  const torch::NoGradGuard no_grad;
  CHECK_NOTHROW(attend(leaf, inference, inference, options));
  CHECK_NOTHROW(attention(tokens));
}

TEST_CASE("Negative views are read as what they stand for") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  torch::manual_seed(2);
  const auto options = Options().kernel(kernel).causal(true);
  const auto q = draw();
  const auto k = draw();
  const auto v = draw();
  const auto expected = attend(q, k, v, options);
  CHECK_THAT(attend(negative_view(q), k, v, options), IsCloseTo(expected));
  CHECK_THAT(
      attend(q, negative_view(k), negative_view(v), options),
      IsCloseTo(expected));
  const auto slopes = torch::ones({2}, torch::kDouble);
  CHECK_THAT(
      attend(q, k, v, Options(options).alibi_slopes(negative_view(slopes))),
      IsCloseTo(attend(q, k, v, Options(options).alibi_slopes(slopes))));
  const auto bias = torch::randn({5, 5}, torch::kDouble);
  CHECK_THAT(
      attend(q, k, v, Options(options).bias(negative_view(bias))),
      IsCloseTo(attend(q, k, v, Options(options).bias(bias))));
}

TEST_CASE("Gradients may come as views, sparse, or without memory") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const int64_t size = GENERATE(4, 64);
  CAPTURE(kernel, size);
  torch::manual_seed(3);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(size, size, 80, 2).kernel(kernel));
  const auto x = torch::randn({2, size == 4 ? 5 : 70, size}).requires_grad_();
  const auto gradient = [&](const torch::Tensor& grad_output) {
    return torch::autograd::grad({attention(x)}, {x}, {grad_output})[0];
  };
  const auto grad = torch::randn_like(x);
  const auto expected = gradient(grad);
  CHECK_THAT(gradient(negative_view(grad)), IsCloseTo(expected));
  // Views, of which large modules make some, take no sparse gradients.
  if (kernel == Kernel::kFused && size == 4) {
    CHECK_THAT(gradient(grad.to_sparse()), IsCloseTo(expected));
  }
  CHECK_THAT(
      gradient(at::_efficientzerotensor(x.sizes(), x.options())),
      IsCloseTo(torch::zeros_like(x)));
  CHECK_THAT(
      gradient(torch::ones({1}).expand_as(x)),
      IsCloseTo(gradient(torch::ones_like(x))));
}

TEST_CASE("Tensors without memory of their own are read as zeros") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  const auto x = draw();
  const auto options = Options().kernel(kernel);
  const auto zeros = at::_efficientzerotensor(x.sizes(), x.options());
  const auto read = torch::zeros_like(x);
  // Each leaves numbers in the memory that the next one gets.
  for (int i = 0; i < 4; ++i) {
    CHECK_THAT(attend(x, x, zeros, options), IsCloseTo(read));
    CHECK_THAT(
        attend(zeros, x, x, options), IsCloseTo(attend(read, x, x, options)));
    CHECK_THAT(
        attend(x, zeros, x, options), IsCloseTo(attend(x, read, x, options)));
  }
  const auto leaf =
      at::_efficientzerotensor(x.sizes(), x.options()).requires_grad_();
  const auto read_leaf = torch::zeros_like(x).requires_grad_();
  attend(x, x, leaf, options).sum().backward();
  attend(x, x, read_leaf, options).sum().backward();
  CHECK_THAT(leaf.grad(), IsCloseTo(read_leaf.grad()));
}

TEST_CASE("Tensors that are not dense are refused by name") {
  const auto x = draw(torch::kFloat);
  const auto name =
      std::string("scaled_dot_product_attention: expected a dense ");
  const auto as = [](const char* layout) {
    return std::string(", but got a tensor of layout ") + layout +
        "; convert it with to_dense()";
  };
  THROWS_WITH(attend(x.to_sparse(), x, x), name + "query" + as("Sparse"));
  THROWS_WITH(attend(x, x.to_mkldnn(), x), name + "key" + as("Mkldnn"));
  THROWS_WITH(
      attend(x, x, torch::quantize_per_tensor(x, 0.1, 0, torch::kQInt8)),
      name + "value, but got a quantized tensor");
  THROWS_WITH(
      attend(
          x,
          x,
          x,
          Options().mask(torch::zeros({5, 5}, torch::kBool).to_sparse())),
      name + "mask");
  THROWS_WITH(
      attend(x, x, x, Options().bias(torch::zeros({5, 5}).to_sparse())),
      name + "bias");
  THROWS_WITH(
      attend(x, x, x, Options().alibi_slopes(torch::ones({2}).to_sparse())),
      name + "alibi_slopes");
  const auto nested = at::_nested_tensor_from_tensor_list(
      {torch::randn({3, 4}), torch::randn({2, 4})});
  THROWS_WITH(attend(nested, nested, nested), name + "query, but got a nested");
  MultiHeadAttention attention(MultiHeadAttentionOptions(4, 4, 8, 2));
  const auto tokens = torch::randn({2, 3, 4});
  THROWS_WITH(
      attention(tokens.to_sparse()),
      "MultiHeadAttention: expected a dense input" + as("Sparse"));
  THROWS_WITH(
      attention(tokens.to_mkldnn()),
      "MultiHeadAttention: expected a dense input" + as("Mkldnn"));
  THROWS_WITH(attention(nested), "expected a dense input, but got a nested");
  THROWS_WITH(
      F::rotary_embedding(x.to_sparse(), torch::arange(5), RotaryOptions()),
      "rotary_embedding: expected a dense x");
}

TEST_CASE("Dtypes that attention is not computed in are refused by name") {
  const auto dtype = GENERATE(
      torch::kInt,
      torch::kBool,
      torch::kComplexFloat,
      at::kFloat8_e4m3fn,
      at::kFloat8_e5m2);
  CAPTURE(dtype);
  const auto x = torch::ones({2, 2, 5, 4}).to(dtype);
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  // Whatever the options are.
  for (const auto& options :
       {Options(),
        Options().softcap(std::numeric_limits<double>::infinity()),
        Options().scale(std::numeric_limits<double>::quiet_NaN())}) {
    THROWS_WITH(
        attend(x, x, x, Options(options).kernel(kernel)),
        c10::str(
            "scaled_dot_product_attention: expected a floating-point query, "
            "but got ",
            dtype));
  }
  THROWS_WITH(
      F::attention_weights(x, 4, Options()),
      c10::str("expected floating-point scores, but got ", dtype));
  THROWS_WITH(
      F::rotary_embedding(x, torch::arange(5), RotaryOptions()),
      c10::str("expected floating-point x, but got ", dtype));
  MultiHeadAttention attention(MultiHeadAttentionOptions(4, 4, 8, 2));
  THROWS_WITH(
      attention(x[0]),
      c10::str("expected floating-point input, but got ", dtype));
  const auto real = torch::ones({2, 2, 5, 4});
  if (dtype != torch::kBool) {
    THROWS_WITH(
        attend(real, real, real, Options().bias(torch::ones({5, 5}).to(dtype))),
        c10::str("expected a floating-point bias, but got ", dtype));
  }
  THROWS_WITH(F::softmax_naive({}), "softmax_naive: the input is undefined");
  THROWS_WITH(
      F::attention_scores({}, real),
      "attention_scores: the query is undefined");
  THROWS_WITH(
      F::attention_weights({}, 4),
      "attention_weights: the scores are undefined");
}

TEST_CASE("Shapes are computed on the device meta") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  CAPTURE(kernel, dtype);
  const auto x =
      torch::empty({2, 2, 5, 4}, torch::device(torch::kMeta).dtype(dtype));
  const auto lengths = torch::tensor({int64_t{3}, int64_t{5}});
  for (const auto& options :
       {Options().causal(true),
        Options().window(2).window_after(1).key_lengths(lengths).query_offsets(
            lengths),
        Options().chunk(2).query_offsets(lengths),
        Options().causal(true).chunk(2),
        Options().sinks(torch::ones({2}, torch::kMeta)),
        Options().softcap(1),
        Options().alibi_slopes(torch::ones({2}, torch::kMeta))}) {
    const auto y = attend(x, x, x, Options(options).kernel(kernel));
    CHECK(y.is_meta());
    CHECK_THAT(y, HasShape({2, 2, 5, 4}));
  }
  MultiHeadAttention attention(MultiHeadAttentionOptions(4, 8, 8, 2)
                                   .kernel(kernel)
                                   .rotary(RotaryOptions()));
  // Module::to cannot.
  for (auto* linear :
       {&attention->W_query,
        &attention->W_key,
        &attention->W_value,
        &attention->out_proj}) {
    for (auto* parameter : {&(*linear)->weight, &(*linear)->bias}) {
      if (parameter->defined()) {
        *parameter = parameter->detach().to(torch::kMeta, dtype);
      }
    }
  }
  CHECK_THAT(attention(x.select(1, 0)), HasShape({2, 5, 8}));
}

TEST_CASE("Numbers are not taken from the device meta") {
  const auto x = draw();
  const auto meta = torch::device(torch::kMeta);
  THROWS_WITH(
      attend(x, x, x, Options().alibi_slopes(torch::ones({2}, meta))),
      "expected alibi_slopes with numbers, but got a tensor on the device "
      "meta");
  THROWS_WITH(
      attend(
          x,
          x,
          x,
          Options().key_lengths(torch::ones({2}, meta.dtype(torch::kLong)))),
      "expected key_lengths with numbers");
  MultiHeadAttention attention(MultiHeadAttentionOptions(4, 4, 8, 2));
  attention->eval();
  auto cache = attention->make_cache(2);
  THROWS_WITH(
      attention->decode(
          torch::randn({2, 3, 4}),
          cache,
          torch::ones({2}, meta.dtype(torch::kLong))),
      "expected new_lengths with numbers");
}

TEST_CASE("vmap sees what a loop would") {
  namespace fc = at::functorch;
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  torch::manual_seed(4);
  const auto q = torch::randn({3, 2, 2, 5, 4});
  const auto k = torch::randn({2, 2, 5, 4});
  const std::vector<Options> all = {
      Options().kernel(kernel),
      Options().kernel(kernel).causal(true),
      Options().kernel(kernel).softcap(1).causal(true).window(2),
      Options().kernel(kernel).chunk(2).sinks(torch::ones({2}))};
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    std::vector<torch::Tensor> expected;
    for (int64_t n = 0; n < q.size(0); ++n) {
      expected.push_back(attend(q[n], k, k, all[i]));
    }
    const auto level = fc::initAndPushDynamicLayer(
        fc::TransformType::Vmap, q.size(0), fc::RandomnessType::Error);
    torch::Tensor result;
    try {
      result = attend(fc::makeBatched(q, 0, level), k, k, all[i]);
      result = fc::maybeGetBatchedImpl(result)->value();
    } catch (...) {
      fc::popDynamicLayerAndDeleteMetadata();
      throw;
    }
    fc::popDynamicLayerAndDeleteMetadata();
    CHECK_THAT(result, IsCloseTo(torch::stack(expected)));
  }
}

} // namespace unusual_tensors_test
