// The functions that benchmarks/load_weights.py calls: our loader, in Python's
// own process, with Python's own LibTorch.

#include <harness/memory.h>
#include <tools/measure.h>
#include <torch_attention/weights/load.h>

#include <torch/nn/module.h>

#include <iostream>
#include <sstream>
#include <string>

namespace {

/// A tree of modules with the parameters listed in a text: each line has a key
/// and the sizes.
class Tree : public torch::nn::Module {
 public:
  void add(const std::string& key, const torch::Tensor& tensor) {
    const auto dot = key.find('.');
    if (dot == std::string::npos) {
      register_parameter(key, tensor, /*requires_grad=*/false);
      return;
    }
    const auto name = key.substr(0, dot);
    auto* child = named_children().find(name);
    auto next = child != nullptr
        ? std::dynamic_pointer_cast<Tree>(*child)
        : register_module(name, std::make_shared<Tree>());
    next->add(key.substr(dot + 1), tensor);
  }
};

std::shared_ptr<Tree> make_tree(const std::string& description) {
  auto tree = std::make_shared<Tree>();
  std::istringstream lines(description);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    std::vector<int64_t> sizes;
    int64_t size = 0;
    while (words >> size) {
      sizes.push_back(size);
    }
    tree->add(key, torch::zeros(sizes));
  }
  return tree;
}

std::shared_ptr<Tree> model;

} // namespace

extern "C" {

__attribute__((visibility("default"))) void make_model(
    const char* description) {
  model = make_tree(description);
}

/// Returns the seconds of one load, or -1 after an error. Sets `peak_bytes` to
/// the peak of the memory beyond that in use before, including pages of the
/// file.
__attribute__((visibility("default"))) double load_model(
    const char* path,
    const char* prefix,
    int64_t* peak_bytes) {
  using namespace torch_attention;
  try {
    double seconds = 0;
    const auto load = [&] {
      load_weights(*model, path, LoadOptions().prefix(prefix));
    };
    *peak_bytes = benchmarks::peak_memory_of([&] {
                    seconds = tools::seconds_of(load);
                  }).resident;
    return seconds;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return -1;
  }
}

/// Returns the sum of all elements, for comparison with Python's.
__attribute__((visibility("default"))) double sum_model() {
  double sum = 0;
  for (const auto& parameter : model->parameters()) {
    sum += parameter.sum(torch::kDouble).item<double>();
  }
  return sum;
}
}
