// Python's weights in, some steps of training, and out to Python again
// (round_trip.py):
//   round_trip WEIGHTS DATA RESULT_WEIGHTS RESULT
// DATA has the input "x" and "target"; RESULT gets the "output" at the end. Or
// tensors of every dtype, view and name that Python shall read:
//   round_trip RESULT

#include <torch_attention/torch_attention.h>

#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <exception>
#include <iostream>
#include <string>

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

/// The numbers from 0 to 11. Safetensors has fewer dtypes.
void write_tensors(const std::string& path) {
  using namespace std::string_literals;
  const auto x = at::arange(12, torch::kFloat).reshape({3, 4});
  const auto z = at::complex(x, x + 12);
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  for (const auto dtype :
       {torch::kBool,
        torch::kUInt8,
        torch::kInt8,
        torch::kInt16,
        torch::kInt32,
        torch::kInt64,
        torch::kUInt16,
        torch::kUInt32,
        torch::kUInt64,
        torch::kFloat16,
        torch::kBFloat16,
        torch::kFloat32,
        torch::kFloat64,
        torch::kFloat8_e5m2,
        torch::kFloat8_e4m3fn,
        torch::kFloat8_e5m2fnuz,
        torch::kFloat8_e4m3fnuz}) {
    tensors.insert(torch::toString(dtype), x.to(dtype));
  }
  const std::string extension = ".pt";
  if (path.compare(path.size() - extension.size(), path.npos, extension) == 0) {
    tensors.insert("ComplexHalf", z.to(torch::kComplexHalf));
    tensors.insert("ComplexDouble", z.to(torch::kComplexDouble));
  }
  tensors.insert("z", z);
  tensors.insert("conjugate", z.conj());
  tensors.insert("negative", at::_neg_view(z));
  tensors.insert("imaginary", at::imag(z.conj()));
  tensors.insert("transposed", x.t());
  tensors.insert("part", x.slice(1, 1, 3));
  tensors.insert("expanded", x.slice(0, 0, 1).expand({2, 4}));
  tensors.insert("tied", x);
  tensors.insert("tied again", x);
  tensors.insert("scalar", x[1][2]);
  tensors.insert("empty", x.slice(0, 3));
  tensors.insert("a.\0\"b\"\\\n\xc3\xbc"s, x);
  tensors.insert("", x);
  torch_attention::write_weights(tensors, path);
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 2) {
    std::cerr << "usage: round_trip WEIGHTS DATA RESULT_WEIGHTS RESULT\n"
                 "       round_trip RESULT\n";
    return 2;
  }
  try {
    if (argc == 2) {
      write_tensors(argv[1]);
    } else {
      run(argv);
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
