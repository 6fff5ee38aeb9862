// Models whose attention is swapped while memory runs out.

#include <memory/computation.h>
#include <support/golden.h>

#include <torch_attention/jit/swap_attention.h>

#include <torch/script.h>

namespace swap_memory_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE("A model that cannot be swapped attends as before") {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  const auto x = torch::randn({3, 2, 8});
  const auto options =
      torch::nn::TransformerOptions(8, 2, 2, 2).dim_feedforward(16).dropout(0);
  check_no_faults(fail_each_allocation([&] {
    torch::manual_seed(2);
    const auto model = std::make_shared<torch::nn::TransformerImpl>(options);
    const auto before = model->modules();
    const auto expected = model->forward(x, x);
    const auto report = std::make_shared<ModuleSwapReport>();
    Attempt attempt;
    attempt.run = [=] { *report = swap_attention(*model); };
    attempt.changed = [=] {
      if (model->modules() != before) {
        return "other modules are in the model";
      }
      return model->forward(x, x).equal(expected) ? "" : "other outputs";
    };
    attempt.wrong = [=] {
      return report->swapped.size() == 2 && report->left.empty() &&
              model->forward(x, x).allclose(expected, 1e-5, 1e-5)
          ? ""
          : "not swapped";
    };
    return attempt;
  }));
}

TEST_CASE("Of several encoders all are swapped or none") {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  const auto x = torch::randn({3, 2, 8});
  const auto encoder = [] {
    return torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
        torch::nn::TransformerEncoderLayerOptions(8, 2)
            .dim_feedforward(16)
            .dropout(0),
        1));
  };
  check_no_faults(fail_each_allocation([&] {
    torch::manual_seed(2);
    const torch::nn::Sequential model(encoder(), encoder());
    const auto before = model->modules();
    const auto expected = model.ptr()->forward(x);
    const auto report = std::make_shared<ModuleSwapReport>();
    Attempt attempt;
    attempt.run = [=] { *report = swap_attention(*model.ptr()); };
    attempt.changed = [=] {
      if (model->modules() != before) {
        return "other modules are in the model";
      }
      return model.ptr()->forward(x).equal(expected) ? "" : "other outputs";
    };
    attempt.wrong = [=] {
      return report->swapped == std::vector<std::string>{"0", "1"} &&
              model.ptr()->forward(x).allclose(expected, 1e-5, 1e-5)
          ? ""
          : "not swapped";
    };
    return attempt;
  }));
}

TEST_CASE("A TorchScript model that cannot be swapped computes as before") {
  const torch::NoGradGuard no_grad;
  const auto file = torch::jit::load(golden("jit/gpt2-eager.pt"));
  Failures failures;
  failures.every = 1999;
  const auto text_of = [](const torch::jit::Module& model) {
    return model.get_method("forward").graph()->toString();
  };
  auto result = fail_each_allocation(
      [&] {
        const auto model = std::make_shared<torch::jit::Module>(file.clone());
        const auto before = text_of(*model);
        const auto report = std::make_shared<GraphSwapReport>();
        Attempt attempt;
        attempt.run = [=] { *report = swap_attention(*model); };
        attempt.changed = [=] {
          return text_of(*model) == before ? "" : "another graph";
        };
        attempt.wrong = [=] {
          return !report->swapped.empty() && text_of(*model) != before
              ? ""
              : "not swapped";
        };
        return attempt;
      },
      failures);
  // LibTorch ends the process where it saves or loads without memory.
  check_no_faults(
      result,
      {"~PyTorchStreamWriter",
       "torch::jit::Pickler::~Pickler",
       "torch::jit::import_ir_module"});
}

} // namespace swap_memory_test
