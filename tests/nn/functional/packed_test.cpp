// Sequences of different lengths, packed without padding.

#include <support/close.h>
#include <support/test.h>

#include <ATen/Parallel.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <random>
#include <vector>

namespace packed_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

using Options = F::ScaledDotProductAttentionFuncOptions;
using Lengths = std::vector<int64_t>;
using Tensors = std::vector<torch::Tensor>;

namespace {

torch::Tensor starts_of(
    const Lengths& lengths,
    torch::ScalarType dtype = torch::kInt) {
  std::vector<int64_t> starts = {0};
  for (const auto length : lengths) {
    starts.push_back(starts.back() + length);
  }
  return torch::tensor(starts, torch::kLong).to(dtype);
}

int64_t sum_of(const Lengths& lengths) {
  int64_t sum = 0;
  for (const auto length : lengths) {
    sum += length;
  }
  return sum;
}

int64_t longest_of(const Lengths& lengths) {
  return lengths.empty() ? 0
                         : *std::max_element(lengths.begin(), lengths.end());
}

/// One random packed attention.
struct Packed {
  Lengths queries;
  Lengths keys;
  Options options;
  /// query, key, value, and those of bias, slopes and sinks that there are
  Tensors inputs;
  bool shared = false;

  torch::Tensor attend() const {
    return F::scaled_dot_product_attention(
        inputs[0], inputs[1], inputs[2], options);
  }

  /// Sequence after sequence, in float64 by Python's steps.
  torch::Tensor one_by_one() const {
    Tensors outputs;
    int64_t first_query = 0;
    int64_t first_key = 0;
    for (size_t i = 0; i < queries.size(); ++i) {
      const auto T = queries[i];
      const auto S = keys[i];
      auto alone = options;
      alone.kernel(Kernel::kReference)
          .cu_seqlens(torch::Tensor())
          .cu_seqlens_k(torch::Tensor())
          .mask(part_of(options.mask(), i))
          .bias(part_of(options.bias(), i));
      const auto b = static_cast<int64_t>(i);
      const auto count_of = [&](const torch::Tensor& counts) {
        return counts.defined() ? counts.slice(0, b, b + 1) : counts;
      };
      alone.key_lengths(count_of(options.key_lengths()))
          .query_offsets(count_of(options.query_offsets()));
      const auto tokens = [](const torch::Tensor& x, int64_t first, int64_t n) {
        return x.to(torch::kDouble).narrow(2, first, n);
      };
      outputs.push_back(F::scaled_dot_product_attention(
          tokens(inputs[0], first_query, T),
          tokens(inputs[1], first_key, S),
          tokens(inputs[2], first_key, S),
          alone));
      first_query += T;
      first_key += S;
    }
    return torch::cat(outputs, 2).to(inputs[0].scalar_type());
  }

  Tensors gradients_of(const torch::Tensor& output, bool again = false) const {
    torch::manual_seed(17);
    const auto weights = torch::randn(output.sizes(), torch::kDouble);
    return torch::autograd::grad(
        {(output * weights.to(output.scalar_type())).sum()},
        inputs,
        {},
        again,
        again);
  }

 private:
  torch::Tensor part_of(const torch::Tensor& scores, size_t i) const {
    if (!scores.defined()) {
      return scores;
    }
    const auto b = static_cast<int64_t>(i);
    auto part = scores.dim() == 4 && scores.size(0) > 1
        ? scores.slice(0, b, b + 1)
        : scores;
    part = part.size(-1) > 1 ? part.slice(-1, 0, keys[i]) : part;
    return part.size(-2) > 1 ? part.slice(-2, 0, queries[i]) : part;
  }
};

/// Draws sizes, dtype and options.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {
    torch::manual_seed(seed);
  }

  Packed packed(torch::ScalarType dtype, bool with_options) {
    Packed p;
    const auto count = number(1, 6);
    const bool cross = one_in(3);
    const auto most = one_in(4) ? 400 : 40;
    for (int64_t i = 0; i < count; ++i) {
      p.queries.push_back(one_in(6) ? number(0, 1) : number(1, most));
      p.keys.push_back(cross ? number(0, most) : p.queries.back());
    }
    // At least one key: gradients of empty tensors say nothing.
    p.queries.push_back(2);
    p.keys.push_back(cross ? 3 : 2);
    const auto G = number(1, 3);
    const auto H = G * number(1, 3);
    const auto D = number(1, 40);
    const auto input = [&](int64_t heads, int64_t tokens, int64_t size) {
      // Half of them as projections give them: tokens before heads.
      const auto x = one_in(2)
          ? torch::randn({1, tokens, heads, size}, dtype).transpose(1, 2)
          : torch::randn({1, heads, tokens, size}, dtype);
      return x.detach().requires_grad_();
    };
    p.inputs = {
        input(H, sum_of(p.queries), D),
        input(G, sum_of(p.keys), D),
        input(G, sum_of(p.keys), one_in(2) ? D : number(1, 40))};
    p.options.enable_gqa(true).cu_seqlens(
        starts_of(p.queries, one_in(2) ? torch::kInt : torch::kLong));
    if (cross) {
      p.options.cu_seqlens_k(starts_of(p.keys));
    }
    if (with_options) {
      add_options(p, dtype, H);
    }
    return p;
  }

 private:
  int64_t number(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  bool one_in(int64_t n) {
    return number(1, n) == 1;
  }

  void add_options(Packed& p, torch::ScalarType dtype, int64_t H) {
    auto& options = p.options;
    const auto B = static_cast<int64_t>(p.queries.size());
    const auto T = longest_of(p.queries);
    const auto S = longest_of(p.keys);
    const auto wide = dtype == torch::kDouble ? dtype : torch::kFloat;
    options.causal(one_in(2));
    if (one_in(3)) {
      options.window(number(1, 30));
      if (!options.causal()) {
        options.window_after(number(0, 30));
      }
    } else if (one_in(4)) {
      options.chunk(number(1, 20));
    }
    if (one_in(3)) {
      options.scale(0.3);
    }
    if (one_in(4)) {
      options.softcap(5);
    }
    const auto scores = [&] {
      return std::vector<int64_t>{
          one_in(2) ? B : 1, one_in(2) ? H : 1, one_in(2) ? T : 1, S};
    };
    if (one_in(3)) {
      options.mask(torch::rand(scores()) < 0.3);
    }
    if (one_in(3)) {
      options.bias(torch::randn(scores(), wide).requires_grad_());
      p.inputs.push_back(options.bias());
    }
    if (one_in(4)) {
      options.alibi_slopes(torch::rand({H}, wide).requires_grad_());
      p.inputs.push_back(options.alibi_slopes());
    }
    if (one_in(4)) {
      options.sinks(torch::randn({H}, wide).requires_grad_());
      p.inputs.push_back(options.sinks());
    }
    if (one_in(4)) {
      options.key_lengths(torch::randint(0, S + 1, {B}));
    }
    if (one_in(4)) {
      options.query_offsets(torch::randint(-2, S + 1, {B}));
    }
  }

  std::mt19937 random_;
};

Tolerance tolerance_of(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kDouble:
      return {1e-10, 1e-10};
    case torch::kFloat:
      return {1e-4, 1e-4};
    case torch::kHalf:
      return {2e-2, 2e-2};
    default:
      return {1e-1, 1e-1};
  }
}

} // namespace

TEST_CASE("Packed sequences attend as each does alone") {
  const auto dtype =
      GENERATE(torch::kDouble, torch::kFloat, torch::kBFloat16, torch::kHalf);
  const auto kernel = GENERATE(Kernel::kFused, Kernel::kReference);
  const unsigned num_cases = dtype == torch::kDouble ? 60 : 15;
  for (unsigned seed = 0; seed < num_cases; ++seed) {
    CAPTURE(dtype, kernel, seed);
    auto packed = Draw(seed).packed(dtype, /*with_options=*/seed % 3 > 0);
    packed.options.kernel(kernel);
    const auto output = packed.attend();
    const auto expected = packed.one_by_one();
    // Our kernels compute in more bits than the reference, which rounds to the
    // dtype at each step.
    const auto tolerance = tolerance_of(dtype);
    CHECK_THAT(output, IsCloseTo(expected, tolerance));
    const auto gradients = packed.gradients_of(output);
    const auto expected_gradients = packed.gradients_of(expected);
    for (size_t i = 0; i < gradients.size(); ++i) {
      CAPTURE(i);
      const auto norm =
          expected_gradients[i].abs().max().clamp_min(1).item<double>();
      CHECK_THAT(
          gradients[i] / norm,
          IsCloseTo(expected_gradients[i] / norm, tolerance));
    }
  }
}

TEST_CASE("Packed sequences drop what the padded batch drops") {
  const Lengths lengths = {70, 1, 33, 0, 120};
  const auto B = static_cast<int64_t>(lengths.size());
  const auto N = sum_of(lengths);
  const auto T = longest_of(lengths);
  torch::manual_seed(3);
  const auto x = torch::randn({3, 1, 2, N, 8}, torch::kDouble);
  auto padded = torch::zeros({3, B, 2, T, 8}, torch::kDouble);
  const auto starts = starts_of(lengths, torch::kLong);
  const auto each = [&](const auto& of_sequence) {
    for (int64_t b = 0; b < B; ++b) {
      const auto n = lengths[static_cast<size_t>(b)];
      of_sequence(b, starts[b].item<int64_t>(), n);
    }
  };
  each([&](int64_t b, int64_t first, int64_t n) {
    padded.select(1, b).narrow(2, 0, n).copy_(x.squeeze(1).narrow(2, first, n));
  });
  const auto options = Options().causal(true).dropout(0.4);
  torch::manual_seed(4);
  const auto output = F::scaled_dot_product_attention(
      x[0], x[1], x[2], Options(options).cu_seqlens(starts));
  torch::manual_seed(4);
  const auto expected = F::scaled_dot_product_attention(
      padded[0],
      padded[1],
      padded[2],
      Options(options)
          .key_lengths(torch::tensor(lengths))
          .query_offsets(torch::zeros({B}, torch::kLong)));
  each([&](int64_t b, int64_t first, int64_t n) {
    CHECK_THAT(
        output[0].narrow(1, first, n), IsCloseTo(expected[b].narrow(1, 0, n)));
  });
}

TEST_CASE("Few packed queries of many keys are split and joined") {
  const auto dtype = GENERATE(torch::kDouble, torch::kFloat, torch::kBFloat16);
  Packed packed;
  packed.queries = {1, 3, 40, 0, 2, 70};
  packed.keys = {1700, 1100, 60, 5, 3000, 1};
  torch::manual_seed(11);
  const auto input = [&](int64_t heads, int64_t tokens) {
    return torch::randn({1, heads, tokens, 16}, dtype).requires_grad_();
  };
  packed.inputs = {
      input(2, sum_of(packed.queries)),
      input(1, sum_of(packed.keys)),
      input(1, sum_of(packed.keys))};
  packed.options.enable_gqa(true)
      .causal(true)
      .cu_seqlens(starts_of(packed.queries))
      .cu_seqlens_k(starts_of(packed.keys));
  const auto output = packed.attend();
  const auto expected = packed.one_by_one();
  const auto tolerance = tolerance_of(dtype);
  CHECK_THAT(output, IsCloseTo(expected, tolerance));
  const auto gradients = packed.gradients_of(output);
  const auto expected_gradients = packed.gradients_of(expected);
  for (size_t i = 0; i < gradients.size(); ++i) {
    CHECK_THAT(gradients[i], IsCloseTo(expected_gradients[i], tolerance));
  }
}

TEST_CASE("Gradients of packed sequences can be differentiated again") {
  const auto kernel = GENERATE(Kernel::kFused, Kernel::kReference);
  for (unsigned seed = 0; seed < 12; ++seed) {
    CAPTURE(kernel, seed);
    auto packed = Draw(seed).packed(torch::kDouble, /*with_options=*/true);
    packed.options.kernel(kernel);
    const auto again_of = [&](const torch::Tensor& output) {
      torch::Tensor sum = torch::zeros({}, torch::kDouble);
      for (const auto& gradient : packed.gradients_of(output, true)) {
        sum = sum + gradient.sin().sum();
      }
      return torch::autograd::grad(
          {sum}, packed.inputs, {}, {}, {}, /*allow_unused=*/true);
    };
    const auto found = again_of(packed.attend());
    const auto expected = again_of(packed.one_by_one());
    for (size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      REQUIRE(found[i].defined() == expected[i].defined());
      if (found[i].defined()) {
        CHECK_THAT(found[i], IsCloseTo(expected[i], Tolerance(1e-8, 1e-8)));
      }
    }
  }
}

TEST_CASE("Gradients of packed sequences under dropout come twice alike") {
  auto packed = Draw(2).packed(torch::kDouble, /*with_options=*/false);
  packed.options.dropout(0.3).causal(true);
  const auto gradients_of = [&](bool again) {
    torch::manual_seed(5);
    return packed.gradients_of(packed.attend(), again);
  };
  const auto once = gradients_of(false);
  const auto again = gradients_of(true);
  for (size_t i = 0; i < once.size(); ++i) {
    CHECK_THAT(again[i], IsCloseTo(once[i], Tolerance(1e-9, 1e-9)));
    CHECK(again[i].requires_grad());
  }
}

TEST_CASE("Packed sequences do not depend on the number of threads") {
  const auto num_threads = at::get_num_threads();
  for (unsigned seed = 100; seed < 104; ++seed) {
    const auto packed = Draw(seed).packed(torch::kFloat, true);
    const auto compute = [&](int threads) {
      at::set_num_threads(threads);
      const auto output = packed.attend();
      auto results = packed.gradients_of(output);
      results.push_back(output);
      return results;
    };
    const auto alone = compute(1);
    const auto together = compute(3);
    for (size_t i = 0; i < alone.size(); ++i) {
      CHECK_THAT(together[i], IsEqualTo(alone[i]));
    }
  }
  at::set_num_threads(num_threads);
}

TEST_CASE("A packed query may lack the batch") {
  torch::manual_seed(6);
  const auto x = torch::randn({3, 1, 2, 9, 4});
  const auto options = Options().cu_seqlens(starts_of({4, 5})).causal(true);
  const auto attend = [&](const torch::Tensor& y) {
    return F::scaled_dot_product_attention(y[0], y[1], y[2], options);
  };
  CHECK_THAT(attend(x.squeeze(1)), IsEqualTo(attend(x).squeeze(0)));
}

TEST_CASE("A batch of no sequences is empty") {
  const auto kernel = GENERATE(Kernel::kFused, Kernel::kReference);
  const auto x = torch::randn({1, 2, 0, 4}).requires_grad_();
  for (const auto& lengths : {Lengths{}, Lengths{0, 0}}) {
    const auto output = F::scaled_dot_product_attention(
        x, x, x, Options().kernel(kernel).cu_seqlens(starts_of(lengths)));
    CHECK_THAT(output, HasShape({1, 2, 0, 4}));
    CHECK_THAT(
        torch::autograd::grad({output.sum()}, {x})[0], HasShape({1, 2, 0, 4}));
  }
  const auto output = F::scaled_dot_product_attention(
      x,
      x,
      x,
      Options()
          .kernel(kernel)
          .cu_seqlens(starts_of({}))
          .key_lengths(torch::empty({0}, torch::kLong))
          .mask(torch::zeros({0, 1, 1, 1}, torch::kBool))
          .bias(torch::zeros({0, 2, 1, 1})));
  CHECK_THAT(output, HasShape({1, 2, 0, 4}));
}

TEST_CASE("A backward pass has the starts of its forward pass") {
  torch::manual_seed(7);
  const auto x = torch::randn({1, 2, 9, 4}).requires_grad_();
  const auto gradient_of = [&](const std::vector<int64_t>& later) {
    std::vector<int64_t> numbers = {0, 4, 9};
    // Memory that others write, such as NumPy's.
    const auto starts = torch::from_blob(
        numbers.data(), {3}, torch::TensorOptions(torch::kLong));
    const auto output = F::scaled_dot_product_attention(
        x, x, x, Options().causal(true).cu_seqlens(starts));
    numbers = later;
    return torch::autograd::grad({output.square().sum()}, {x})[0];
  };
  const auto expected = gradient_of({0, 4, 9});
  CHECK_THAT(gradient_of({0, 1, 9}), IsEqualTo(expected));
  CHECK_THAT(gradient_of({0, 0, 0}), IsEqualTo(expected));
}

TEST_CASE("A trace cannot keep packed sequences") {
  const auto x = torch::randn({1, 2, 9, 4});
  const auto trace = [&] {
    torch::jit::tracer::trace(
        {x, starts_of({4, 5})},
        [](const torch::jit::Stack& inputs) {
          const auto y = inputs[0].toTensor();
          return torch::jit::Stack{F::scaled_dot_product_attention(
              y, y, y, Options().cu_seqlens(inputs[1].toTensor()))};
        },
        [](const torch::Tensor&) { return std::string(); });
  };
  THROWS_WITH(trace(), "expected no cu_seqlens in a trace");
}

TEST_CASE("Starts that do not fit are refused") {
  const auto x = torch::randn({1, 2, 9, 4});
  const auto refused =
      [&](const torch::Tensor& y, const Options& options, const char* text) {
        THROWS_WITH(F::scaled_dot_product_attention(y, y, y, options), text);
      };
  const auto starts = [](std::vector<int64_t> numbers) {
    return Options().cu_seqlens(torch::tensor(numbers, torch::kLong));
  };
  refused(
      x,
      starts({0, 4, 8}),
      "scaled_dot_product_attention: expected cu_seqlens from 0 to the number "
      "of tokens, 9, but got 0 to 8");
  refused(x, starts({1, 9}), "but got 1 to 9");
  refused(
      x,
      starts({0, 12, 5, 9}),
      "expected cu_seqlens that do not decrease, but got 12, then 5 at 2");
  refused(
      x,
      Options().cu_seqlens(torch::tensor({0.0, 9.0})),
      "expected cu_seqlens of an integer dtype and shape (B + 1), but got "
      "Float of shape [2]");
  refused(
      x,
      Options().cu_seqlens(torch::empty({0}, torch::kLong)),
      "of an integer dtype and shape (B + 1)");
  refused(
      torch::randn({2, 2, 9, 4}),
      starts({0, 9}),
      "expected, with cu_seqlens, query, key and value of shape (1, H, N, D) "
      "or (H, N, D), but got query [2, 2, 9, 4]");
  refused(
      x,
      Options().cu_seqlens_k(starts_of({9})),
      "expected cu_seqlens beside cu_seqlens_k");
  refused(
      x,
      starts({0, 4, 9}).cu_seqlens_k(starts_of({9})),
      "expected cu_seqlens_k of as many sequences as cu_seqlens has, 2, but "
      "got 1");
  refused(
      x,
      starts({0, 4, 9}).mask(torch::zeros({9, 9}, torch::kBool)),
      "expected a mask that broadcasts to the scores [2, 2, 5, 5]");
  refused(
      x,
      starts({0, 4, 9}).key_lengths(torch::tensor({1, 2, 3})),
      "expected key_lengths of an integer dtype and shape (B) = [2]");
  THROWS_WITH(
      F::scaled_dot_product_attention_with_weights(x, x, x, starts({0, 9})),
      "scaled_dot_product_attention_with_weights: expected one sequence or a "
      "padded batch, but got cu_seqlens");
  THROWS_WITH(
      F::attention_weights(torch::randn({9, 9}), 4, starts({0, 9})),
      "attention_weights: expected scores of one sequence");
}

} // namespace packed_test
