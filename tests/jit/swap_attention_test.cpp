// Places that are swapped, places that are left alone, and their report.

#include <jit/scripted_model.h>
#include <support/golden.h>

#include <torch_attention/weights/read.h>

namespace torch_attention {
namespace swap_attention_test {

using namespace testing::scripted;
using testing::ContainsText;
using testing::IsCloseTo;

bool is_ours(torch::jit::Module& module) {
  return code(module).find("torch_attention::attention") != std::string::npos;
}

TEST_CASE("Only a product without a mask is plain attention") {
  auto module = model(kScores + kWeights + kOutput);
  CHECK(printed(check_swapped(module)) == "swapped     forward: attention\n");
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
  // One sequence many times; dropout differs from copy to copy.
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
