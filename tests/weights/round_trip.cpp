// Python's weights in, some steps of training, and out to Python again
// (round_trip.py):
//   round_trip WEIGHTS DATA RESULT_WEIGHTS RESULT
// DATA has the input "x" and "target"; RESULT gets the "output" at the end.

#include <torch_attention/torch_attention.h>

#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <exception>
#include <iostream>

namespace {

/// Tensors by name, for files of data.
class Tensors : public torch::nn::Module {
 public:
  explicit Tensors(const torch::OrderedDict<std::string, torch::Tensor>& items)
      : torch::nn::Module("Tensors") {
    for (const auto& item : items) {
      register_buffer(item.key(), item.value());
    }
  }
};

constexpr int64_t kBatch = 2;
constexpr int64_t kTokens = 5;
constexpr int64_t kIn = 6;
constexpr int64_t kOut = 8;

void run(char** arguments) {
  auto attention = torch_attention::MultiHeadAttention(
      torch_attention::MultiHeadAttentionOptions(kIn, kOut, 7, 2)
          .qkv_bias(true)
          .kernel(torch_attention::Kernel::kReference));
  std::cout << torch_attention::load_weights(*attention, arguments[1]);

  Tensors data(
      {{"x", torch::zeros({kBatch, kTokens, kIn})},
       {"target", torch::zeros({kBatch, kTokens, kOut})}});
  torch_attention::load_weights(data, arguments[2]);
  const auto x = data.named_buffers()["x"];
  const auto target = data.named_buffers()["target"];

  torch::optim::SGD optimizer(attention->parameters(), /*lr=*/0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    torch::nn::functional::mse_loss(attention->forward(x), target).backward();
    optimizer.step();
  }
  torch_attention::save_weights(*attention, arguments[3]);
  torch_attention::save_weights(
      Tensors({{"output", attention->forward(x).detach()}}), arguments[4]);
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: round_trip WEIGHTS DATA RESULT_WEIGHTS RESULT\n";
    return 2;
  }
  try {
    run(argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
