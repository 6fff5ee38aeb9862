// Loads the file that Python's torch.jit.trace(...).save wrote for a
// MultiHeadAttention(8, 8, 8, 0.1, 4, qkv_bias=True), and runs it:
//
//   load_and_run attention.pt

#include <torch_attention/device.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/weights/load.h>

#include <exception>
#include <iostream>

namespace {

void load_and_run(const char* path) {
  torch_attention::MultiHeadAttention attention(
      torch_attention::MultiHeadAttentionOptions(
          /*d_in=*/8, /*d_out=*/8, /*context_length=*/8, /*num_heads=*/4)
          .dropout(0.1)
          .qkv_bias(true));
  std::cout << torch_attention::load_weights(*attention, path);

  const auto device = torch_attention::select_device("auto");
  attention->to(device);
  attention->eval();

  const c10::InferenceMode no_gradients;
  const auto x = torch::rand({2, 6, 8}, device);
  const auto y = attention->forward(x);
  std::cout << x.sizes() << " -> " << y.sizes() << " on " << y.device() << '\n';
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: load_and_run ARCHIVE\n";
    return 2;
  }
  try {
    load_and_run(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
