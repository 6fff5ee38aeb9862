// Makes, loads and runs a module. Its one argument is an archive with a
// MultiHeadAttention(8, 8, 8, 0.1, 4, qkv_bias=True).

#include <torch/nn/modules/container/sequential.h>

#include <torch_attention/device.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/weights/load.h>

#include <exception>
#include <iostream>

namespace {

void run(const char* archive) {
  torch_attention::MultiHeadAttention attention(
      /*d_in=*/8,
      /*d_out=*/8,
      /*context_length=*/8,
      /*dropout=*/0.1,
      /*num_heads=*/4,
      /*qkv_bias=*/true);
  std::cout << torch_attention::load_weights(*attention, archive);

  const auto device = torch_attention::select_device("auto");
  std::cout << "device: " << device << '\n';

  torch::nn::Sequential model(attention, torch::nn::Linear(8, 5));
  model->to(device);
  model->eval();
  const auto y = model->forward(torch::rand({2, 7, 8}, device));
  std::cout << "output: " << y.sizes() << '\n';
  TORCH_CHECK(
      y.sizes() == torch::IntArrayRef({2, 7, 5}),
      "expected (2, 7, 5), but got ",
      y.sizes());
  TORCH_CHECK(
      y.isfinite().all().item<bool>(), "expected finite numbers, got ", y);
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: consumer ARCHIVE\n";
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
