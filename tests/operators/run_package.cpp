// Runs an AOTInductor package with our library loaded, and compares its output.
//
//   run_package PACKAGE DATA
//
// DATA is a torch.save file of the tensors `x` and `y`: input and expected
// output.

#include <torch_attention/weights/read.h>

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "run_package PACKAGE DATA\n";
    return 2;
  }
  try {
    const auto data = torch_attention::read_weights(argv[2]);
    torch::inductor::AOTIModelPackageLoader loader(argv[1]);
    const auto y = loader.run({data["x"]}).at(0);
    const auto difference = (y - data["y"]).abs().max().item<double>();
    std::cout << "largest difference: " << difference << "\n";
    return difference < 1e-5 ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
