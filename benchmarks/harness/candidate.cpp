#include <harness/candidate.h>

#include <utility>

namespace torch_attention::benchmarks {

Candidate forward_candidate(
    const std::string& name,
    std::function<torch::Tensor()> run) {
  Candidate candidate;
  candidate.name = name;
  candidate.run = std::move(run);
  return candidate;
}

torch::Tensor leaf_of(const torch::Tensor& values, bool requires_grad) {
  return values.detach().set_requires_grad(requires_grad);
}

std::function<torch::Tensor()> run_of(
    std::function<torch::Tensor()> forward,
    const torch::Tensor& cotangent,
    std::vector<torch::Tensor> leaves) {
  if (!cotangent.defined()) {
    return forward;
  }
  return [forward = std::move(forward),
          cotangent,
          leaves = std::move(leaves)]() mutable {
    for (auto& leaf : leaves) {
      leaf.mutable_grad().reset();
    }
    auto output = forward();
    output.backward(cotangent);
    return output.detach();
  };
}

std::vector<torch::Tensor> take_gradients_of(
    const std::vector<torch::Tensor>& leaves) {
  std::vector<torch::Tensor> gradients;
  for (const auto& leaf : leaves) {
    gradients.push_back(std::exchange(leaf.mutable_grad(), torch::Tensor()));
  }
  return gradients;
}

} // namespace torch_attention::benchmarks
