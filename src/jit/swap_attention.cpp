#include <torch_attention/jit/swap_attention.h>

#include <escape.h>
#include <jit/find_attention.h>
#include <jit/fused_layers.h>
#include <jit/replace_attention.h>

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/common_subexpression_elimination.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <ostream>
#include <unordered_set>
#include <utility>

namespace torch_attention {

namespace {

using graphs::AttentionNodes;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

/// Returns the nodes of a graph, those of its blocks included.
std::vector<Node*> nodes_of(Block* block) {
  std::vector<Node*> nodes;
  for (auto* node : block->nodes()) {
    nodes.push_back(node);
    for (auto* inner : node->blocks()) {
      const auto more = nodes_of(inner);
      nodes.insert(nodes.end(), more.begin(), more.end());
    }
  }
  return nodes;
}

/// Returns the path of the module whose code a node is, as in "blocks.3.att".
std::string path_of(const Node* node) {
  std::string path;
  if (const auto stack = node->callstack()) {
    for (const auto& call : (*stack)->vec()) {
      const auto& instance = std::get<2>(call);
      if (instance && instance->instance_name() != "SELF") {
        path += (path.empty() ? "" : ".") + instance->instance_name();
      }
    }
  }
  return path;
}

/// Lets those who read a tensor after an operator in place read what that
/// returns, which is the same tensor: then values tell what happens to them.
void name_changes(Block* block) {
  for (auto* node : nodes_of(block)) {
    if (node->kind() == c10::Symbol::fromQualString("aten::masked_fill_") ||
        node->kind() == c10::Symbol::fromQualString("aten::add_") ||
        node->kind() == c10::Symbol::fromQualString("aten::mul_") ||
        node->kind() == c10::Symbol::fromQualString("aten::div_") ||
        node->kind() == c10::Symbol::fromQualString("aten::tanh_")) {
      node->input(0)->replaceAllUsesAfterNodeWith(node, node->output());
    }
  }
}

/// Returns whether something between the two products changes in place what
/// our operator reads only at the last.
bool is_changed(const AttentionNodes& found, torch::jit::AliasDb& aliases) {
  torch::jit::ValueSet read{
      found.query.value, found.transposed_key.value, found.value.value};
  for (const auto& mask : found.masks) {
    read.insert(mask.value);
  }
  if (found.first->owningBlock() != found.last->owningBlock()) {
    for (auto* value : read) {
      if (aliases.hasWriters(value)) {
        return true;
      }
    }
    return false;
  }
  for (auto* node = found.first; node != found.last; node = node->next()) {
    if (aliases.writesToAlias(node, read)) {
      return true;
    }
  }
  return false;
}

/// Swaps all attention of a method's graph.
class Swap {
 public:
  Swap(const torch::jit::Module& module, std::string method)
      : module_(module), method_(std::move(method)) {}

  GraphSwapReport run(std::shared_ptr<Graph> graph) {
    torch::jit::Inline(*graph);
    torch::jit::ConstantPropagation(graph);
    torch::jit::EliminateCommonSubexpression(graph);
    torch::jit::EliminateDeadCode(graph);
    name_changes(graph->block());
    swap_softmaxes(graph);
    for (auto* node : nodes_of(graph->block())) {
      graphs::take_apart(node);
    }
    for (auto* node : nodes_of(graph->block())) {
      if (node->kind() ==
          c10::Symbol::fromQualString("aten::scaled_dot_product_attention")) {
        const auto where = place_of(node);
        add(report_.swapped, where, graphs::replace_sdpa_node(module_, node));
      }
    }
    torch::jit::EliminateDeadCode(graph);
    return report_;
  }

 private:
  std::string place_of(const Node* node) const {
    const auto path = path_of(node);
    return path.empty() ? method_ : method_ + ": " + path;
  }

  static void add(
      std::vector<GraphSwapReport::Place>& places,
      const std::string& where,
      const std::string& what) {
    places.push_back({where, what});
  }

  void swap_softmaxes(const std::shared_ptr<Graph>& graph) {
    torch::jit::AliasDb aliases(graph);
    std::vector<AttentionNodes> all;
    for (auto* node : nodes_of(graph->block())) {
      if (node->kind() != torch::jit::aten::softmax) {
        continue;
      }
      auto finding = graphs::find_attention(module_, node);
      if (finding.attention && is_changed(*finding.attention, aliases)) {
        finding.reason = "its query, key, value or mask is changed in place";
        finding.attention.reset();
      }
      if (finding.attention) {
        all.push_back(*finding.attention);
      } else if (!finding.reason.empty()) {
        add(report_.left_alone, place_of(node), finding.reason);
      }
    }
    for (const auto& found : all) {
      const auto where = place_of(found.softmax);
      add(report_.swapped, where, graphs::replace_attention(found));
    }
  }

  const torch::jit::Module& module_;
  std::string method_;
  GraphSwapReport report_;
};

} // namespace

GraphSwapReport swap_attention(torch::jit::Module& module) {
  // A copy of the code, not of the weights: what has run once keeps its
  // program.
  auto swapped = module.clone(/*inplace=*/true);
  GraphSwapReport all;
  for (const auto& method : swapped.get_methods()) {
    auto* function = torch::jit::tryToGraphFunction(method.function());
    if (function == nullptr) {
      continue;
    }
    const auto report = Swap(swapped, method.name()).run(function->graph());
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(all.swapped, report.swapped);
    append(all.left_alone, report.left_alone);
  }
  if (!all.swapped.empty()) {
    module = swapped;
  }
  return all;
}

std::ostream& operator<<(std::ostream& stream, const GraphSwapReport& report) {
  for (const auto& place : report.swapped) {
    stream << "swapped     " << escaped(place.where) << ": "
           << escaped(place.what) << "\n";
  }
  for (const auto& place : report.left_alone) {
    stream << "left alone  " << escaped(place.where) << ": "
           << escaped(place.what) << "\n";
  }
  if (report.swapped.empty() && report.left_alone.empty()) {
    stream << "no attention found\n";
  }
  return stream;
}

} // namespace torch_attention
