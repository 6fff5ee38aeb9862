#include <support/close.h>
#include <support/golden.h>
#include <support/test.h>

#include <torch_attention/jit/swap_attention.h>
#include <torch_attention/weights/read.h>

#include <torch/script.h>

#include <sstream>

namespace torch_attention {
namespace swap_attention_test {

using testing::ContainsText;
using testing::IsCloseTo;

std::string printed(const GraphSwapReport& report) {
  std::ostringstream text;
  text << report;
  return text.str();
}

/// Attention of x (B, T, 8) with itself; `mask` (L, L) is float.
torch::jit::Module model(
    const std::string& body,
    const torch::Tensor& mask = torch::ones({9, 9}).triu(1)) {
  torch::jit::Module module("Model");
  module.register_parameter(
      "w", torch::randn({8, 8}).requires_grad_(), /*is_buffer=*/false);
  module.register_buffer("mask", mask);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.define("def forward(self, x):\n" + body);
  return module;
}

const std::string kScores =
    "    T = x.size(1)\n"
    "    q = torch.matmul(x, self.w)\n"
    "    scores = torch.matmul(q, x.transpose(1, 2))\n";
const std::string kMasked = kScores +
    "    hidden = self.mask.to(11)[:T, :T]\n"
    "    scores.masked_fill_(hidden, float('-inf'))\n";
const std::string kWeights =
    "    weights = torch.softmax(scores / 2.5, dim=-1)\n";
const std::string kOutput = "    return torch.matmul(weights, x)\n";

std::string code(torch::jit::Module& module) {
  return module.get_method("forward").graph()->toString();
}

bool is_ours(torch::jit::Module& module) {
  return code(module).find("torch_attention::attention") != std::string::npos;
}

/// Swaps, and compares outputs and gradients with the model as it was.
GraphSwapReport check_swapped(torch::jit::Module& module) {
  const auto x = torch::randn({2, 5, 8});
  const auto run = [&] {
    const auto w = module.attr("w").toTensor();
    w.mutable_grad() = torch::Tensor();
    const auto y = module.forward({x}).toTensor();
    y.sin().sum().backward();
    return std::pair(y.detach(), w.grad().clone());
  };
  const auto [output, gradient] = run();
  const auto report = swap_attention(module);
  const auto [new_output, new_gradient] = run();
  CHECK_THAT(new_output, IsCloseTo(output, {1e-5, 1e-5}));
  CHECK_THAT(new_gradient, IsCloseTo(gradient, {1e-4, 1e-4}));
  return report;
}

/// Swaps, and compares outputs and gradients for more tokens than others have
/// tried.
void check_swapped_at_all_sizes(torch::jit::Module& module) {
  auto swapped = module.clone();
  REQUIRE(swap_attention(swapped).swapped.size() == 1);
  for (const int64_t tokens : {1, 2, 6, 9, 40}) {
    CAPTURE(tokens);
    const auto x = torch::randn({2, tokens, 8});
    const auto run = [&](torch::jit::Module& one) {
      const auto w = one.attr("w").toTensor();
      const auto y = one.forward({x}).toTensor();
      return std::pair(
          y.detach(), torch::autograd::grad({y.sin().sum()}, {w})[0]);
    };
    const auto [output, gradient] = run(module);
    const auto [new_output, new_gradient] = run(swapped);
    CHECK_THAT(new_output, IsCloseTo(output, {1e-5, 1e-5}));
    CHECK_THAT(new_gradient, IsCloseTo(gradient, {1e-4, 1e-4}));
  }
}

/// Compares outputs and gradients of the first input at several calls, since
/// TorchScript compiles gradients of its own at the third.
void check_same_at_calls(
    torch::jit::Module& module,
    torch::jit::Module& swapped,
    std::vector<torch::Tensor> inputs) {
  inputs[0].requires_grad_();
  const auto run = [&](torch::jit::Module& one) {
    const auto y = one.forward({inputs.begin(), inputs.end()}).toTensor();
    return std::pair(
        y.detach(), torch::autograd::grad({y.sin().sum()}, {inputs[0]})[0]);
  };
  for (int call = 0; call < 3; ++call) {
    CAPTURE(call);
    const auto [output, gradient] = run(module);
    const auto [new_output, new_gradient] = run(swapped);
    CHECK_THAT(new_output, IsCloseTo(output, {1e-5, 1e-5}));
    CHECK_THAT(new_gradient, IsCloseTo(gradient, {1e-5, 1e-5}));
  }
}

TEST_CASE("A mask hides what its values say, however many tokens there are") {
  const auto masked = [](const std::string& mask) {
    return model(
        kScores + mask + "    scores = scores.masked_fill(m, float('-inf'))\n" +
        kWeights + kOutput);
  };
  const std::string distance =
      "    i = torch.arange(T)\n    d = i.unsqueeze(1) - i.unsqueeze(0)\n";
  for (const auto& mask :
       {distance + "    m = d < 0\n",
        distance + "    m = torch.logical_or(d < 0, d >= 7)\n",
        distance + "    m = torch.logical_and(d < 0, i >= 8)\n",
        std::string("    m = torch.triu(torch.ones(T, T), 1) > 0\n"
                    "    m[:, :2] = False\n"),
        std::string("    m = torch.triu(torch.ones(T, T), 1) > 0\n"
                    "    m.select(1, 0).fill_(False)\n"),
        std::string("    m = x.detach().sum(-1).unsqueeze(1) > 4\n"
                    "    m[:, :, 0] = False\n"),
        std::string("    self.mask = torch.ones(T, T).triu(1)\n"
                    "    m = self.mask > 0\n")}) {
    INFO(mask);
    auto module = masked(mask);
    check_swapped_at_all_sizes(module);
  }
}

TEST_CASE("A mask that a model keeps may change after the swap") {
  auto module = model(kMasked + kWeights + kOutput);
  auto swapped = module.clone();
  swap_attention(swapped);
  swapped.attr("mask").toTensor()[4][0] = 1;
  module.attr("mask").toTensor()[4][0] = 1;
  const auto x = torch::randn({2, 5, 8});
  CHECK_THAT(
      swapped.forward({x}).toTensor(),
      IsCloseTo(module.forward({x}).toTensor(), {1e-5, 1e-5}));
}

TEST_CASE("The values of a buffer are left as they were") {
  auto module = model(kMasked + kWeights + kOutput);
  const auto before = module.attr("mask").toTensor().clone();
  check_swapped(module);
  CHECK(torch::equal(module.attr("mask").toTensor(), before));
}

TEST_CASE("Only a product without a mask is plain attention") {
  auto module = model(kScores + kWeights + kOutput);
  CHECK(printed(check_swapped(module)) == "swapped     forward: attention\n");
}

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

TEST_CASE("Places that look like attention are left alone, with a reason") {
  const auto reason_for = [](const std::string& body) {
    auto module = model(body);
    const auto before = code(module);
    const auto report = check_swapped(module);
    CHECK(report.swapped.empty());
    CHECK(code(module) == before);
    REQUIRE(report.left_alone.size() == 1);
    return report.left_alone[0].what;
  };
  CHECK(
      reason_for(
          kScores + kWeights +
          "    return torch.matmul(weights, x) + weights.sum()\n") ==
      "its weights are read elsewhere as well");
  CHECK(
      reason_for(
          kScores + kWeights +
          "    return torch.matmul(weights, x) + "
          "scores.sum()\n") == "its scores are read elsewhere as well");
  CHECK_THAT(
      reason_for(
          kScores + "    weights = torch.softmax(scores * -1.0, dim=-1)\n" +
          kOutput),
      ContainsText("its scores are multiplied by -1"));
  CHECK_THAT(
      reason_for(
          kMasked + "    scores.masked_fill_(x[:, :, :1] > 0, -3.0)\n" +
          kWeights + kOutput),
      ContainsText("which may not hide them"));
  CHECK(
      reason_for(
          kScores + "    weights = torch.softmax(scores, dim=-2)\n" +
          kOutput) ==
      "its softmax is over dimension -2, which is not that of keys");
}

TEST_CASE("What is changed before our operator would read it is left alone") {
  auto module = model(kScores + kWeights + "    x.add_(1.0)\n" + kOutput);
  const auto report = swap_attention(module);
  CHECK(report.swapped.empty());
  REQUIRE(report.left_alone.size() == 1);
  CHECK(report.left_alone[0].what == "what it reads is changed in place");
}

/// A model of q (..., T, 8), k and v whose scores are computed by `scores`.
torch::jit::Module model_of_scores(const std::string& scores) {
  torch::jit::Module module("Model");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_attribute("flag", c10::BoolType::get(), true);
  module.register_parameter(
      "learned", torch::tensor(0.5f).requires_grad_(), /*is_buffer=*/false);
  module.define(
      "def forward(self, q, k, v, m):\n"
      "    s = torch.matmul(q, k.transpose(-2, -1))\n" +
      scores +
      "    w = torch.softmax(s, -1)\n"
      "    return torch.matmul(w, v)\n");
  return module;
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

/// Swaps a model of q, k, v and m, expects so many places, and compares outputs
/// and gradients, also of what is saved and loaded again.
void check_branches(
    torch::jit::Module module,
    size_t places,
    const std::vector<std::vector<c10::IValue>>& calls) {
  auto swapped = module.clone();
  const auto report = swap_attention(swapped);
  INFO(printed(report));
  CHECK(report.swapped.size() == places);
  CHECK(report.left_alone.empty());
  std::stringstream file;
  swapped.save(file);
  auto loaded = torch::jit::load(file);
  for (const auto& inputs : calls) {
    const auto run = [&](torch::jit::Module& one) {
      const auto q = inputs[0].toTensor().clone().requires_grad_();
      auto arguments = inputs;
      arguments[0] = q;
      const auto y = one.forward(arguments).toTensor();
      return std::pair(
          y.detach(), torch::autograd::grad({y.sin().sum()}, {q})[0]);
    };
    const auto [output, gradient] = run(module);
    for (auto* one : {&swapped, &loaded}) {
      const auto [new_output, new_gradient] = run(*one);
      CHECK_THAT(new_output, IsCloseTo(output, {1e-5, 1e-5}));
      CHECK_THAT(new_gradient, IsCloseTo(gradient, {1e-5, 1e-5}));
    }
  }
}

TEST_CASE("Each branch that changes scores has attention of its own") {
  torch::jit::Module module("Model");
  module.register_attribute("flag", c10::BoolType::get(), false);
  module.define(
      "def forward(self, q, k, v, m: Optional[Tensor]):\n"
      "    s = torch.matmul(q, k.transpose(-2, -1)) / 3.0\n"
      "    if m is not None:\n"
      "        s = s.masked_fill(m, float('-inf'))\n"
      "    if self.flag:\n"
      "        s = s * 0.5\n"
      "    w = torch.softmax(s, -1)\n"
      "    return torch.matmul(w, v)\n");
  const auto q = torch::randn({2, 3, 5, 8});
  const auto k = torch::randn({2, 3, 7, 8});
  const auto mask = torch::ones({5, 7}, torch::kBool).triu(1);
  check_branches(module, 4, {{q, k, k, mask}, {q, k, k, c10::IValue()}});
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

TEST_CASE("A branch that is left alone beside others keeps its gradients") {
  torch::jit::Module module("Model");
  module.register_attribute("flag", c10::BoolType::get(), true);
  module.define(
      "def forward(self, x, b):\n"
      "    q = x.view(x.size(0), x.size(1), 2, -1).transpose(1, 2)\n"
      "    s = torch.matmul(q, q.transpose(-2, -1))\n"
      "    if self.flag:\n"
      "        s = torch.add(s, b, alpha=2)\n"
      "    w = torch.softmax(s, -1, 7).to(6)\n"
      "    return torch.matmul(w, q)\n");
  auto swapped = module.clone();
  const auto report = swap_attention(swapped);
  CHECK(report.swapped.size() == 1);
  CHECK(report.left_alone.size() == 1);
  check_same_at_calls(
      module, swapped, {torch::randn({2, 5, 8}), torch::rand({5, 5})});
}

TEST_CASE("Scores that a tensor multiplies in place keep their gradients") {
  torch::jit::Module module("Model");
  module.register_attribute("flag", c10::BoolType::get(), true);
  module.define(
      "def forward(self, x):\n"
      "    s = torch.matmul(x, x.transpose(-2, -1))\n"
      "    s *= torch.sqrt(torch.tensor(float(x.size(-1))))\n"
      "    if self.flag:\n"
      "        s.mul_(0.5)\n"
      "    return torch.matmul(torch.softmax(s, -1), x)\n");
  auto swapped = module.clone();
  swap_attention(swapped);
  check_same_at_calls(module, swapped, {torch::randn({2, 5, 8})});
}

TEST_CASE("A key that is changed in place after its product stays out of it") {
  torch::jit::Module module("Model");
  module.define(
      "def forward(self, x):\n"
      "    k = x * 2.0\n"
      "    s = torch.einsum('btd,bsd->bts', x, k)\n"
      "    k.mul_(2.0)\n"
      "    if x.size(1) > 4:\n"
      "        s = s / 3.0\n"
      "    else:\n"
      "        s = s * 3.0\n"
      "    w = torch.softmax(s, -1)\n"
      "    return torch.einsum('bts,bsd->btd', w, x)\n");
  auto swapped = module.clone();
  swap_attention(swapped);
  // Without gradients: the product has kept the key that is changed.
  const torch::NoGradGuard no_grad;
  for (const int64_t tokens : {4, 5}) {
    const auto x = torch::randn({2, tokens, 8});
    CHECK_THAT(
        swapped.forward({x}).toTensor(),
        IsCloseTo(module.forward({x}).toTensor()));
  }
}

TEST_CASE("Gradients that are switched off before a branch stay off") {
  torch::jit::Module module("Model");
  module.define(
      "def forward(self, q, k, v, m: Optional[Tensor]):\n"
      "    torch.set_grad_enabled(False)\n"
      "    s = torch.matmul(q, k.transpose(-2, -1))\n"
      "    torch.set_grad_enabled(True)\n"
      "    if m is not None:\n"
      "        s = s.masked_fill(m, float('-inf'))\n"
      "    w = torch.softmax(s, -1)\n"
      "    return torch.matmul(w, v)\n");
  const auto report = swap_attention(module);
  CHECK(report.swapped.empty());
  CHECK(report.left_alone.size() == 1);
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
  // One that joins rows instead: the old operators compute.
  check(define("    s = s.view(30, 7) * 0.5\n    s = s.view(6, 5, 7)\n", ""));
}

/// Torchaudio's Emformer: a fill that is an attribute, and sizes and dtype of
/// the scores read again, in a branch as well.
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

TEST_CASE("Scores that are changed in place in a branch, or in a loop, stay") {
  for (const auto* scores :
       {"    if self.flag:\n        s.masked_fill_(m, -1e9)\n",
        "    if self.training:\n        s.mul_(0.5)\n",
        "    for i in range(3):\n        s.mul_(0.5)\n",
        "    s = s.to(3).to(q.dtype)\n",
        "    s = s.masked_fill(m, -1e6) / 1e6\n",
        "    s = s + 1.5\n",
        "    s[..., 0] = 0.0\n",
        "    s = torch.cat([s, s[..., :1]], -1)[..., :-1]\n"}) {
    INFO(scores);
    auto module = model_of_scores(scores);
    const auto before = code(module);
    const auto report = swap_attention(module);
    CHECK(report.swapped.empty());
    CHECK(report.left_alone.size() == 1);
    CHECK(code(module) == before);
  }
}

TEST_CASE("Scores without gradients stay without") {
  auto module = model(
      "    torch.set_grad_enabled(False)\n"
      "    scores = torch.matmul(x, x.transpose(1, 2))\n"
      "    weights = torch.softmax(scores, -1)\n"
      "    torch.set_grad_enabled(True)\n" +
      kOutput);
  const auto report = swap_attention(module);
  CHECK(report.swapped.empty());
  REQUIRE(report.left_alone.size() == 1);
  CHECK_THAT(report.left_alone[0].what, ContainsText("gradients"));
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

TEST_CASE("An example is compared before and after") {
  auto module = model(kMasked + kWeights + kOutput);
  const auto x = torch::randn({2, 5, 8});
  const auto expected = module.forward({x}).toTensor();
  const auto report =
      swap_attention(module, SwapOptions().example({{c10::IValue(x)}}));
  CHECK(report.swapped.size() == 1);
  CHECK(report.left_alone.empty());
  CHECK_THAT(module.forward({x}).toTensor(), IsCloseTo(expected, {1e-5, 1e-5}));
}

TEST_CASE("A place that changes the outputs of an example is left alone") {
  // Where all keys are hidden by -inf Python gives NaN, and our operator zeros.
  const auto define = [](torch::jit::Module& module) {
    module.define(
        "def attend(self, x, m):\n"
        "    s = torch.matmul(x, x.transpose(1, 2)).masked_fill(m, "
        "float('-inf'))\n"
        "    return torch.matmul(torch.softmax(s, -1), x)\n"
        "def forward(self, x, m):\n"
        "    y = self.attend(x, torch.logical_not(m))\n"
        "    return (self.attend(x, m), y)\n");
  };
  torch::jit::Module module("Model");
  define(module);
  const auto x = torch::randn({2, 5, 8});
  const auto m = torch::ones({5, 5}, torch::kBool);
  const auto run = [&] {
    return module.forward({x, m}).toTuple()->elements()[0].toTensor();
  };
  CHECK(run().isnan().all().item<bool>());
  const auto report = swap_attention(
      module, SwapOptions().example({{c10::IValue(x), c10::IValue(m)}}));
  REQUIRE_FALSE(report.left_alone.empty());
  CHECK_THAT(report.left_alone[0].what, ContainsText("would differ"));
  CHECK(run().isnan().all().item<bool>());
}

TEST_CASE("An example of a model that drops weights is refused") {
  auto module = model(
      kMasked + kWeights +
      "    weights = torch.dropout(weights, 0.5, self.training)\n" + kOutput);
  const auto before = code(module);
  const auto x = torch::randn({2, 5, 8});
  THROWS_WITH(
      swap_attention(module, SwapOptions().example({{c10::IValue(x)}})),
      "call eval()");
  CHECK(code(module) == before);
}

TEST_CASE("A softmax that is no attention is not mentioned") {
  auto module =
      model("    return torch.softmax(torch.matmul(x, self.w), -1)\n");
  CHECK(printed(swap_attention(module)) == "no attention found\n");
}

TEST_CASE("Swapped attention drops weights in training alone") {
  auto module = model(
      kMasked + kWeights +
      "    weights = torch.dropout(weights, 0.5, self.training)\n" + kOutput);
  module.eval();
  const auto x = torch::randn({2, 5, 8});
  const auto expected = module.forward({x}).toTensor();
  CHECK(
      printed(swap_attention(module)) ==
      "swapped     forward: attention with a mask and dropout\n");
  CHECK_THAT(module.forward({x}).toTensor(), IsCloseTo(expected));
  module.train();
  const auto dropped = module.forward({x}).toTensor();
  CHECK_FALSE(torch::allclose(dropped, expected));
}

TEST_CASE("Swapped attention drops weights as the model did, on average") {
  auto module = model(
      kMasked + kWeights +
      "    weights = torch.dropout(weights, 0.5, self.training)\n" + kOutput);
  // One sequence many times, of which each draws weights of its own.
  const auto x = torch::randn({1, 5, 8}).expand({20000, 5, 8}).contiguous();
  const auto averages = [&] {
    const auto w = module.attr("w").toTensor();
    w.mutable_grad() = torch::Tensor();
    const auto y = module.forward({x}).toTensor();
    y.sin().mean(0).sum().backward();
    return std::vector<torch::Tensor>{
        y.detach().mean(0), y.detach().var(0), w.grad().clone()};
  };
  torch::manual_seed(1);
  const auto expected = averages();
  REQUIRE(swap_attention(module).swapped.size() == 1);
  const auto found = averages();
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(found[i], IsCloseTo(expected[i], {0.05, 0.05}));
  }
}

TEST_CASE("A model that has run is swapped, and shares its weights") {
  auto module = model(kMasked + kWeights + kOutput);
  auto original = module;
  const auto x = torch::randn({2, 5, 8});
  module.forward({x});
  swap_attention(module);
  CHECK(is_ours(module));
  CHECK_FALSE(is_ours(original));
  {
    const torch::NoGradGuard no_grad;
    original.attr("w").toTensor().mul_(2);
  }
  CHECK_THAT(
      module.forward({x}).toTensor(),
      IsCloseTo(original.forward({x}).toTensor(), {1e-5, 1e-5}));
}

TEST_CASE("A swapped model can be saved, and swapping again finds nothing") {
  auto module = model(kMasked + kWeights + kOutput);
  const auto x = torch::randn({2, 5, 8});
  const auto expected = module.forward({x}).toTensor();
  swap_attention(module);
  std::stringstream file;
  module.save(file);
  auto loaded = torch::jit::load(file);
  CHECK_THAT(loaded.forward({x}).toTensor(), IsCloseTo(expected, {1e-5, 1e-5}));
  CHECK(printed(swap_attention(loaded)) == "no attention found\n");
}

TEST_CASE("Queries that a finite fill hides everything from see all alike") {
  torch::jit::Module module("Model");
  module.define(
      "def forward(self, x, mask):\n"

      "    scores = torch.matmul(x, x.transpose(1, 2))\n"
      "    scores = scores.masked_fill(mask, -1e9)\n"
      "    return torch.matmul(torch.softmax(scores, -1), x)\n");
  auto x = torch::randn({2, 5, 8}).requires_grad_();
  auto mask = torch::rand({2, 5, 5}) > 0.5;
  mask[1][2] = true;
  const auto run = [&] {
    const auto y = module.forward({x, mask}).toTensor();
    return std::pair(
        y.detach(), torch::autograd::grad({y.sin().sum()}, {x})[0]);
  };
  const auto [output, gradient] = run();
  CHECK(swap_attention(module).swapped.size() == 1);
  const auto [new_output, new_gradient] = run();
  CHECK_THAT(new_output, IsCloseTo(output, {1e-5, 1e-5}));
  CHECK_THAT(new_gradient, IsCloseTo(gradient, {1e-4, 1e-4}));
}

TEST_CASE("LibTorch's operator keeps its alignment of causal masks") {
  torch::jit::Module module("Model");
  module.define(
      "def forward(self, q, k):\n"
      "    return torch.scaled_dot_product_attention(q, k, k, is_causal=True)\n");
  const auto q = torch::randn({2, 3, 4, 8});
  const auto k = torch::randn({2, 3, 6, 8});
  const auto expected = module.forward({q, k}).toTensor();
  CHECK(swap_attention(module).swapped.size() == 1);
  CHECK_THAT(
      module.forward({q, k}).toTensor(), IsCloseTo(expected, {1e-5, 1e-5}));
}

TEST_CASE("Models of transformers are swapped") {
  for (const auto* name :
       {"gemma2-eager",
        "gpt2-eager",
        "gpt2-sdpa",
        "llama-eager",
        "llama-sdpa",
        "bert-eager",
        "bert-sdpa",
        "bert-mask-eager",
        "bert-mask-sdpa"}) {
    INFO(name);
    const auto path = std::string(TORCH_ATTENTION_GOLDEN_DIR) + "/jit/" + name;
    auto module = torch::jit::load(path + ".pt");
    const auto recorded = read_weights(path + ".expected.pt");
    std::vector<c10::IValue> inputs;
    for (const auto& item : recorded) {
      if (item.key() != "output") {
        inputs.emplace_back(item.value());
      }
    }
    const auto report = swap_attention(module);
    CHECK(report.swapped.size() == 1);
    CHECK(report.left_alone.empty());
    const bool is_eager = std::string(name).find("eager") != std::string::npos;
    CHECK((report.swapped[0].what.find("attention") == 0) == is_eager);
    const auto output = module.forward(inputs).toTuple()->elements()[0];
    CHECK_THAT(output.toTensor(), IsCloseTo(recorded["output"], {1e-5, 1e-5}));
  }
}

} // namespace swap_attention_test
} // namespace torch_attention
