// Changes of scores between the product with keys and the softmax: scales,
// fills, casts and views.

#include <jit/model_of_scores.h>

namespace torch_attention {
namespace swap_scores_test {

using namespace testing::scripted;
using testing::IsCloseTo;

TEST_CASE("Scores are scaled by what follows from sizes") {
  for (const auto* scaled :
       {"scores / float(C // 2) ** 0.5",
        "scores * (C // 2) ** -0.5",
        "scores / torch.sqrt(torch.tensor(float(C // 2)))",
        "(C // 2) ** -0.5 * scores"}) {
    INFO(scaled);
    auto module = model(
        kMasked + "    C = x.size(2)\n    weights = torch.softmax(" + scaled +
        ", dim=-1)\n" + kOutput);
    CHECK(
        printed(check_swapped(module)) ==
        "swapped     forward: attention with a mask\n");
  }
}

TEST_CASE("Old operators compute where ours would give other numbers") {
  const auto q = torch::randn({2, 3, 5, 8});
  const auto k = torch::randn({2, 3, 5, 8});
  const auto v = torch::randn({2, 3, 5, 8});
  const auto mask = torch::ones({5, 5}, torch::kBool).triu(1);
  struct Example {
    std::string scores;
    std::vector<c10::IValue> inputs;
  };
  for (const auto& [scores, inputs] : std::vector<Example>{
           // fills that a later factor takes back
           {"    s = s.masked_fill(m, -300.0) * float(q.size(-1)) / 8e3\n",
            {q, k, v, mask}},
           // fills that the scores come near
           {"    s = s.masked_fill(m, -1e4)\n", {100 * q, 100 * k, v, mask}},
           // queries that see no key
           {"    s = s.masked_fill(m, -1e9)\n",
            {q, k, v, torch::ones({5, 5}, torch::kBool)}},
           // masks that widen the scores
           {"    s = s.masked_fill(m, -1e9)\n",
            {q, k, v, torch::zeros({2, 1, 1, 5, 5}, torch::kBool)}},
           {"    s = s + m\n", {q, k, v, torch::randn({2, 1, 1, 5, 5})}},
           // bool masks that are added
           {"    s = s + m\n", {q, k, v, mask}},
           // queries of one dimension
           {"", {q[0][0][0], k[0][0], v[0][0], mask}},
           // factors with gradients
           {"    s = s * self.learned\n", {q, k, v, mask}},
           // casts that change numbers
           {"    s = s.to(15).to(q.dtype)\n", {q, k, v, mask}}}) {
    INFO(scores);
    auto module = model_of_scores(scores);
    const auto run = [&](torch::jit::Module& one) {
      const auto learned = one.attr("learned").toTensor();
      learned.mutable_grad() = torch::Tensor();
      const auto y = one.forward(inputs).toTensor();
      if (y.requires_grad()) {
        y.sin().sum().backward();
      }
      return std::pair(
          y.detach(),
          learned.grad().defined() ? learned.grad().clone() : torch::zeros({}));
    };
    const auto [expected, gradient] = run(module);
    REQUIRE(swap_attention(module).swapped.size() == 1);
    const auto [output, new_gradient] = run(module);
    CHECK_THAT(output, IsCloseTo(expected, {1e-5, 1e-5}));
    CHECK_THAT(new_gradient, IsCloseTo(gradient, {1e-5, 1e-5}));
  }
}

TEST_CASE("Operators in place keep the dtype") {
  const auto x = torch::randn({2, 5, 8}, torch::kBFloat16);
  const std::vector<c10::IValue> inputs{
      x,
      torch::rand({5, 5}, torch::kFloat),
      torch::full({1}, 1.5, torch::kDouble)};
  for (const auto* line :
       {"s += b",
        "s = s / 2.0\n    s += b\n    s = s * 2.0\n    s += b",
        "h *= f",
        "h /= f",
        "h += b.sum(0).sum(0, True)"}) {
    CAPTURE(line);
    torch::jit::Module module("Model");
    module.define(
        "def forward(self, x, b, f):\n"
        "    h = x.sum(1)\n"
        "    s = torch.bmm(x, x.transpose(1, 2))\n"
        "    " +
        std::string(line) +
        "\n    return torch.bmm(torch.softmax(s, -1), x), h\n");
    const auto run = [&] { return module.forward(inputs).toTuple(); };
    const auto expected = run();
    CHECK(swap_attention(module).swapped.size() == 1);
    const auto actual = run();
    for (const size_t i : {0, 1}) {
      const auto result = actual->elements()[i].toTensor();
      CHECK(result.scalar_type() == torch::kBFloat16);
      CHECK_THAT(
          result.to(torch::kFloat),
          IsCloseTo(
              expected->elements()[i].toTensor().to(torch::kFloat),
              {0.03, 0.03}));
    }
  }
}

TEST_CASE("Scores may be viewed with more dimensions, and back") {
  const auto q = torch::randn({6, 5, 8});
  const auto k = torch::randn({6, 7, 8});
  const auto define = [](const std::string& scores,
                         const std::string& weights) {
    torch::jit::Module module("Model");
    module.define(
        "def forward(self, q, k, v, m):\n"
        "    s = torch.bmm(q, k.transpose(1, 2))\n" +
        scores + "    w = torch.softmax(s, -1)\n" + weights +
        "    return torch.bmm(w, v)\n");
    return module;
  };
  const std::string view = "    s = s.view(2, 3, 5, 7).masked_fill(m, -1e30)\n";
  const auto mask = torch::rand({2, 1, 5, 7}).gt(0.7);
  const auto check = [&](const torch::jit::Module& module) {
    check_branches(module, 1, {{q, k, k, mask}});
  };
  check(define(view + "    s = s.view(6, 5, 7)\n", ""));
  check(define(view, "    w = w.view(-1, 5, 7)\n"));
  // A view that joins rows is left to the old operators.
  check(define("    s = s.view(30, 7) * 0.5\n    s = s.view(6, 5, 7)\n", ""));
}

/// Torchaudio's Emformer has a fill that is an attribute, and reads sizes and
/// dtype of the scores again, also in a branch.
TEST_CASE("Sizes and dtype of scores may be read again") {
  const auto check = [](double low, bool is_masked, torch::Dtype dtype) {
    CAPTURE(low, is_masked, dtype);
    torch::jit::Module module("Model");
    module.register_attribute("low", c10::FloatType::get(), low);
    module.define(R"(
def forward(self, q, k, v, m: Optional[Tensor]):
    first = torch.bmm(q, k.transpose(1, 2))
    s = first.float()
    n = first.size(0) // 3
    if m is not None:
        s = s.view(n, 3, first.size(1), -1).masked_fill(m, self.low)
        s = s.view(n * 3, first.size(-2), -1)
    return torch.bmm(torch.softmax(s, -1).type_as(first), v)
)");
    const auto q = torch::randn({6, 5, 8}, dtype);
    const auto k = torch::randn({6, 7, 8}, dtype);
    const c10::IValue mask = is_masked
        ? c10::IValue(torch::rand({2, 1, 1, 7}).gt(0.7))
        : c10::IValue();
    const std::vector<c10::IValue> inputs{q, k, k, mask};
    const auto expected = module.forward(inputs).toTensor();
    REQUIRE(swap_attention(module).swapped.size() == 2);
    const auto output = module.forward(inputs).toTensor();
    CHECK(output.scalar_type() == dtype);
    const double tolerance = dtype == torch::kFloat ? 1e-5 : 0.03;
    CHECK_THAT(
        output.to(torch::kDouble),
        IsCloseTo(expected.to(torch::kDouble), {tolerance, tolerance}));
  };
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    for (const double low : {-1e8, -2.0}) {
      check(low, true, dtype);
    }
    check(-1e8, false, dtype);
  }
}

TEST_CASE("An einsum of one token gives the dtype that it gave") {
  for (const auto* step :
       {"s = s.double()", "s = s + b", "s = s * self.f", "w = w.double()"}) {
    CAPTURE(step);
    const std::string line = step;
    const bool is_above = line[0] == 's';
    torch::jit::Module module("Model");
    module.register_buffer("f", torch::ones({1}, torch::kDouble));
    module.define(
        "def forward(self, q, k, v, b):\n"
        "    s = torch.einsum('btd,bsd->bts', q, k)\n"
        "    " +
        (is_above ? line : "pass") +
        "\n    w = torch.softmax(s, -1)\n"
        "    " +
        (is_above ? "pass" : line) +
        "\n    return torch.einsum('bts,bsd->btd', w, v)\n");
    const auto q = torch::randn({2, 1, 8});
    const auto bias = torch::ones({1, 1, 1}, torch::kDouble);
    const auto run = [&] { return module.forward({q, q, q, bias}).toTensor(); };
    const auto expected = run();
    CHECK(expected.scalar_type() == torch::kDouble);
    REQUIRE(swap_attention(module).swapped.size() == 1);
    CHECK_THAT(run(), IsCloseTo(expected, {1e-6, 1e-6}));
    CHECK(run().scalar_type() == torch::kDouble);
  }
}

TEST_CASE("A factor that changes after its use is read before") {
  auto module = model_of_scores(
      "    d = torch.tensor([2.0])\n    s = s / d\n    d.mul_(3.0)\n");
  const auto q = torch::randn({2, 3, 5, 8});
  const auto expected = module.forward({q, q, q, q}).toTensor();
  swap_attention(module);
  CHECK_THAT(
      module.forward({q, q, q, q}).toTensor(),
      IsCloseTo(expected, {1e-5, 1e-5}));
}

TEST_CASE("Large numbers in a swapped model are read again from its file") {
  auto module = model_of_scores("    s = s.masked_fill(m, -1e9) * 15.0\n");
  REQUIRE(swap_attention(module).swapped.size() == 1);
  std::stringstream file;
  module.save(file);
  CHECK_NOTHROW(torch::jit::load(file));
}

} // namespace swap_scores_test
} // namespace torch_attention
