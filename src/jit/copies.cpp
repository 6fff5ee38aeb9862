#include <jit/copies.h>

#include <jit/values.h>

namespace torch_attention::graphs {

namespace {

using torch::jit::Graph;
using torch::jit::Node;

void separate_from_scores(Graph& graph, Node* softmax) {
  if (is(softmax->input(0)->node(), {"aten::alias"})) {
    return;
  }
  const torch::jit::WithInsertPoint point(softmax);
  softmax->replaceInput(0, graph.insert(c10::aten::alias, {softmax->input(0)}));
}

} // namespace

void insert_copies(
    Graph& graph,
    const std::vector<Node*>& nodes,
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
    if (is(copy, {"aten::softmax"})) {
      separate_from_scores(graph, copy);
    }
  }
}

} // namespace torch_attention::graphs
