#include <jit/copies.h>

namespace torch_attention::graphs {

void insert_copies(
    torch::jit::Graph& graph,
    const std::vector<torch::jit::Node*>& nodes,
    Copies& copies) {
  const auto copy_of = [&](torch::jit::Value* value) {
    const auto copied = copies.find(value);
    return copied == copies.end() ? value : copied->second;
  };
  for (auto* node : nodes) {
    auto* copy = graph.insertNode(graph.createClone(node, copy_of));
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      copies[node->outputs()[i]] = copy->outputs()[i];
    }
  }
}

} // namespace torch_attention::graphs
