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
  const auto dtype = input.scalar_type();
  MultiHeadAttention whole(options);
  whole->to(dtype);
  load_weights(*whole, argv[1]);
  MultiHeadAttention module(options);
  module->to(dtype);
  // Python's processes compare nothing.
  distributed::tensor_parallel(
      *module, group, distributed::TensorParallelOptions().compare(false));
  load_weights(
      *module,
      argv[1],
      LoadOptions().shards(distributed::weight_shards(*module)));
  const auto x = input.clone().requires_grad_();
  const auto x_of_whole = input.clone().requires_grad_();
  const auto output = module->forward(x);
  const auto expected = whole->forward(x_of_whole);
  output.square().sum().backward();
  expected.square().sum().backward();
  // Relative to the largest number. The gradient of the keys' bias is 0.
  const auto difference = [](const torch::Tensor& a, const torch::Tensor& b) {
    return ((a - b).abs().max() / b.abs().max().clamp_min(100)).item<double>();
  };
  auto worst = std::max(
      difference(output, expected), difference(x.grad(), x_of_whole.grad()));
  const auto shards = distributed::weight_shards(*module);
  const auto parameters = whole->named_parameters();
  for (const auto& parameter : module->named_parameters()) {
    worst = std::max(
        worst,
        difference(
            parameter.value().grad(),
            testing::own_part(
                parameters[parameter.key()].grad(), parameter.key(), shards)));
  }
  group->barrier()->wait();
  std::cout << "C++ differs from one process by " << worst << "\n";
  return worst < 1e-12 ? 0 : 1;
}
