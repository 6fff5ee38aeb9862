#include <jit/sizes.h>

#include <jit/values.h>

#include <torch/csrc/jit/ir/constants.h>

#include <optional>

namespace torch_attention::graphs {

namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

/// The dimensions of a batched product: (B, T, D) x (B, D, S) -> (B, T, S).
constexpr int64_t kDimensions = 3;

/// Returns the batched product, possibly cast, whose size a node reads; null if
/// it reads another size.
Node* product_read(const Node* node) {
  if (!is(node, {"aten::size"}) || node->inputs().size() != 2) {
    return nullptr;
  }
  auto* read = node->input(0)->node();
  while (is(
      read, {"aten::to", "aten::type_as", "aten::contiguous", "aten::clone"})) {
    read = read->input(0)->node();
  }
  return is(read, {"aten::bmm"}) ? read : nullptr;
}

/// Returns the dimension whose size a node reads; none if it is unknown or out
/// of range.
std::optional<int64_t> dimension_read(const Node* node) {
  const auto given = torch::jit::toIValue(node->input(1));
  if (!given || !given->isInt()) {
    return std::nullopt;
  }
  const auto dim = given->toInt();
  const auto from_first = dim < 0 ? dim + kDimensions : dim;
  return from_first >= 0 && from_first < kDimensions ? std::optional(from_first)
                                                     : std::nullopt;
}

void read_operand(
    Graph& graph,
    Node* reader,
    Node* product,
    int64_t dimension) {
  // Read directly after the product, before anything can change the operand.
  const torch::jit::WithInsertPoint point(product->next());
  auto* operand = product->input(dimension == kDimensions - 1 ? 1 : 0);
  auto* size = graph.insert(c10::aten::size, {operand, dimension});
  reader->output()->replaceAllUsesWith(size);
  reader->destroy();
}

void read_in(Graph& graph, Block* block) {
  for (auto next = block->nodes().begin(); next != block->nodes().end();) {
    auto* node = *next;
    ++next;
    for (auto* inner : node->blocks()) {
      read_in(graph, inner);
    }
    auto* product = product_read(node);
    const auto dimension =
        product == nullptr ? std::nullopt : dimension_read(node);
    if (dimension) {
      read_operand(graph, node, product, *dimension);
    }
  }
}

} // namespace

void read_sizes_of_operands(Graph& graph) {
  read_in(graph, graph.block());
}

} // namespace torch_attention::graphs
