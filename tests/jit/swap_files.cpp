// Swaps the attention of TorchScript files. Reads "IN OUT" a line, writes the
// swapped model to OUT if something is swapped, and prints the report, or
// "threw", and a line "end" for each.

#include <torch_attention/jit/swap_attention.h>

#include <torch/script.h>

#include <exception>
#include <iostream>
#include <string>

int main() {
  std::string in;
  std::string out;
  while (std::cin >> in >> out) {
    try {
      auto module = torch::jit::load(in);
      const auto report = torch_attention::swap_attention(module);
      std::cout << report;
      if (!report.swapped.empty()) {
        module.save(out);
      }
    } catch (const std::exception& error) {
      std::cout << "threw " << error.what() << "\n";
    }
    std::cout << "end" << std::endl;
  }
}
