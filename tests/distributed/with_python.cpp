// A process of a group whose others are Python's (with_python.py): loads its
// part of the weights that Python saved, and compares with the whole.
//
//   with_python weights.pt inputs.pt

#include <distributed/group.h>

#include <torch/torch.h>
#include <torch_attention/distributed/tensor_parallel.h>
#include <torch_attention/torch_attention.h>

#include <algorithm>
#include <iostream>

int main(int argc, char** argv) {
  using namespace torch_attention;
  if (argc != 3) {
    return 2;
  }
  const auto& group = torch_attention::testing::group();
  group->barrier()->wait();
  const auto options = MultiHeadAttentionOptions(8, 64, 16, 8)
                           .qkv_bias(true)
                           .num_kv_heads(4)
                           .register_mask(false);
  const auto input = read_weights(argv[2])["x"];
  MultiHeadAttention whole(options);
  whole->to(torch::kDouble);
  load_weights(*whole, argv[1]);
  MultiHeadAttention module(options);
  module->to(torch::kDouble);
  // Python's processes compare nothing.
  distributed::tensor_parallel(
      *module, group, distributed::TensorParallelOptions().compare(false));
  load_weights(
      *module,
      argv[1],
      LoadOptions().shards(distributed::weight_shards(*module)));
  // Relative to the largest number. The gradient of the keys' bias is 0.
  const auto difference = [](const torch::Tensor& a, const torch::Tensor& b) {
    return ((a - b).abs().max() / b.abs().max().clamp_min(1)).item<double>();
  };
  bool same = true;
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    whole->to(dtype);
    whole->zero_grad();
    module->to(dtype);
    module->zero_grad();
    const auto x = input.to(dtype).clone().requires_grad_();
    const auto x_of_whole = input.to(dtype).clone().requires_grad_();
    const auto output = module->forward(x);
    const auto expected = whole->forward(x_of_whole);
    // As in Python.
    output.square().mean(-1).sum().backward();
    expected.square().mean(-1).sum().backward();
    auto worst = std::max(
        difference(output, expected), difference(x.grad(), x_of_whole.grad()));
    const auto shards = distributed::weight_shards(*module);
    const auto parameters = whole->named_parameters();
    for (const auto& parameter : module->named_parameters()) {
      const auto& gradient = parameters[parameter.key()].grad();
      worst = std::max(
          worst,
          difference(
              parameter.value().grad(),
              testing::own_part(gradient, parameter.key(), shards)));
    }
    std::cout << "C++ differs from one process by " << worst << " in " << dtype
              << "\n";
    same = same && worst < (dtype == torch::kDouble ? 1e-12 : 1e-6);
  }
  group->barrier()->wait();
  return same ? 0 : 1;
}
