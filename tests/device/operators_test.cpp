#include <device/log.h>
#include <device/memory.h>

#include <support/close.h>
#include <support/test.h>

namespace operators_test {

using namespace torch_attention::testing;

TEST_CASE("Operators of the device compute what the CPU's do", "[emulated]") {
  torch::manual_seed(1);
  const auto x = torch::randn({3, 4});
  const auto y = torch::randn({4, 5});
  const auto on = [](const torch::Tensor& each) { return each.to(device()); };
  CHECK_THAT(torch::matmul(on(x), on(y)).cpu(), IsEqualTo(torch::matmul(x, y)));
  CHECK_THAT(
      torch::cat({on(x), on(x)}, 1).softmax(-1).cpu(),
      IsEqualTo(torch::cat({x, x}, 1).softmax(-1)));
  CHECK_THAT(
      torch::where(on(x) > 0, on(x), -1.0).cpu(),
      IsEqualTo(torch::where(x > 0, x, -1.0)));
  CHECK_THAT(on(x).index({on(x) > 0}).cpu(), IsEqualTo(x.index({x > 0})));
  CHECK_THAT(
      torch::arange(5, torch::device(device())).cpu(),
      IsEqualTo(torch::arange(5)));
}

TEST_CASE("Views of the device's tensors share their memory", "[emulated]") {
  const auto x = torch::zeros({2, 3, 4}).to(device());
  x.select(1, 2).fill_(1);
  x.view({6, 4}).narrow(0, 0, 1).add_(2);
  x.unfold(2, 2, 2).select(3, 1).mul_(3);
  auto expected = torch::zeros({2, 3, 4});
  expected.select(1, 2).fill_(1);
  expected.view({6, 4}).narrow(0, 0, 1).add_(2);
  expected.unfold(2, 2, 2).select(3, 1).mul_(3);
  CHECK_THAT(x.cpu(), IsEqualTo(expected));
  CHECK(x.transpose(0, 1).data_ptr() == x.data_ptr());
  CHECK(x.reshape({24}).data_ptr() == x.data_ptr());
}

TEST_CASE("Tensors of the device grow, and take other memory", "[emulated]") {
  const auto x = torch::arange(6.0).to(device());
  x.resize_({2, 2});
  CHECK_THAT(x.cpu(), IsEqualTo(torch::tensor({{0.0F, 1.0F}, {2.0F, 3.0F}})));
  x.resize_({5000});
  CHECK_THAT(x.slice(0, 0, 6).cpu(), IsEqualTo(torch::arange(6.0)));
  auto y = torch::zeros({3}).to(device());
  y.set_(x.slice(0, 2, 4));
  CHECK_THAT(y.cpu(), IsEqualTo(torch::tensor({2.0F, 3.0F})));
  y.set_data(torch::ones({4}).to(device()));
  CHECK_THAT(y.cpu(), IsEqualTo(torch::ones({4})));
}

TEST_CASE("Autograd records on the device", "[emulated]") {
  torch::manual_seed(2);
  const auto gradients = [](const torch::Tensor& x, const torch::Tensor& w) {
    const auto leaf = x.detach().requires_grad_();
    const auto weight = w.detach().requires_grad_();
    torch::gelu(torch::linear(leaf, weight)).pow(2).sum().backward();
    return std::pair(leaf.grad().cpu(), weight.grad().cpu());
  };
  const auto x = torch::randn({5, 4});
  const auto w = torch::randn({3, 4});
  const auto expected = gradients(x, w);
  const auto actual = gradients(x.to(device()), w.to(device()));
  CHECK_THAT(actual.first, IsCloseTo(expected.first));
  CHECK_THAT(actual.second, IsCloseTo(expected.second));
}

TEST_CASE(
    "Tensors of the CPU are refused among those of the device",
    "[emulated]") {
  const auto here = torch::ones({3}).to(device());
  const auto there = torch::ones({3});
  THROWS_WITH(here + there, "to be on the same device");
  THROWS_WITH(torch::cat({here, there}), "to be on the same device");
  CHECK_THAT((here + torch::tensor(1.0)).cpu(), IsEqualTo(there + 1));
}

TEST_CASE("Modules move to the device and back", "[emulated]") {
  torch::manual_seed(3);
  torch::nn::Linear module(4, 3);
  const auto x = torch::randn({2, 4});
  const auto expected = module(x).detach();
  const auto copy =
      std::dynamic_pointer_cast<torch::nn::LinearImpl>(module->clone(device()));
  CHECK(copy->weight.device() == device());
  module->to(device());
  CHECK(module->weight.device() == device());
  CHECK(module->parameters()[0].device() == device());
  CHECK_THAT(module(x.to(device())).detach().cpu(), IsCloseTo(expected));
  CHECK_THAT(copy->forward(x.to(device())).detach().cpu(), IsCloseTo(expected));
  module(x.to(device())).sum().backward();
  CHECK(module->weight.grad().device() == device());
  module->to(torch::kCPU);
  CHECK_THAT(module(x).detach(), IsCloseTo(expected));
}

TEST_CASE("The log has what is asked of the device", "[emulated]") {
  const auto x = torch::ones({2, 3});
  const DeviceLog log;
  const auto y = x.to(device());
  CHECK(log.copies_to_device() == 1);
  CHECK(log.allocations().size() == 1);
  CHECK(log.largest() == 6);
  CHECK(log.allocations()[0].bytes == 24);
  const auto sum = torch::mm(y, y.t());
  CHECK(log.count("aten::mm") == 1);
  const auto inputs = log.operations().back().inputs;
  CHECK(inputs[0] == Sizes{2, 3});
  CHECK(inputs[1] == Sizes{3, 2});
  CHECK(log.operations().back().outputs == std::vector<Sizes>{{2, 2}});
  CHECK(log.allocations().size() == 2);
  CHECK(log.waits().empty());
  sum.cpu();
  CHECK(log.waits().size() == 1);
  sum.sum().item<float>();
  CHECK(log.waits().size() == 2);
  sum.nonzero();
  y.index({y > 0});
  CHECK(log.waits().size() == 4);
  CHECK(log.copies_to_device() == 1);
  CHECK(log.count("aten::copy_") == 0);
  y.clone();
  CHECK(log.count("aten::copy_") == 1);
}

TEST_CASE("The log counts elements of tensors that grow", "[emulated]") {
  const DeviceLog log;
  torch::arange(10, torch::device(device()).dtype(torch::kLong));
  CHECK(log.largest() == 10);
}

} // namespace operators_test
