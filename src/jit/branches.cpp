#include <jit/branches.h>

#include <jit/changes.h>
#include <jit/copies.h>
#include <jit/look_alike.h>
#include <jit/values.h>

#include <torch/csrc/jit/ir/alias_analysis.h>

#include <algorithm>
#include <unordered_set>

namespace torch_attention::graphs {

namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

/// Returns the input of a node through which its output comes from a product,
/// or null. Prefers an input that does so without an `if`.
Value* value_above(Node* node) {
  for (const bool through_branches : {false, true}) {
    for (auto* input : node->inputs()) {
      if (is_tensor(input) && leads_to_product(input, through_branches)) {
        return input;
      }
    }
  }
  return nullptr;
}

/// Returns the value that a block of an `if` returns for `output`.
Value* returned(Block* block, const Value* output) {
  return block->outputs()[output->offset()];
}

/// Calls `visit` with the values from `scores` up to a product, inclusive. At
/// an `if` it follows the first block whose result comes from a product.
/// Returns whether it found one.
template <typename Visit>
bool walk_up(Value* scores, const Visit& visit) {
  while (scores != nullptr) {
    auto* node = scores->node();
    visit(scores);
    if (is_product(node)) {
      return true;
    }
    if (!is(node, {"prim::If"})) {
      scores = value_above(node);
      continue;
    }
    const auto blocks = node->blocks();
    const auto block =
        std::find_if(blocks.begin(), blocks.end(), [&](Block* one) {
          return leads_to_product(returned(one, scores), true);
        });
    scores = block == blocks.end() ? nullptr : returned(*block, scores);
  }
  return false;
}

/// Returns the scores that the `if` nearest to the product returns, among those
/// in the softmax's own block; null if there is none.
Value* branched_scores(Node* softmax) {
  Value* result = nullptr;
  const bool is_found = walk_up(softmax->input(0), [&](Value* scores) {
    if (is(scores->node(), {"prim::If"}) &&
        scores->node()->owningBlock() == softmax->owningBlock()) {
      result = scores;
    }
  });
  return is_found ? result : nullptr;
}

/// Returns the product that reads the weights if nothing else does, or null.
Node* product_below(Node* softmax) {
  const auto* weights = softmax->output();
  while (weights->uses().size() == 1) {
    auto* node = weights->uses().front().user;
    if (node->owningBlock() != softmax->owningBlock()) {
      return nullptr;
    }
    if (is_product(node)) {
      return node;
    }
    if (!is_view(node) &&
        !is(node,
            {"aten::dropout",
             "aten::to",
             "aten::type_as",
             "aten::contiguous",
             "aten::clone",
             "prim::ListConstruct"})) {
      return nullptr;
    }
    weights = node->output();
  }
  return nullptr;
}

bool is_in(const Node* node, const Node* owner) {
  while (node != nullptr && node != owner) {
    node = node->owningBlock()->owningNode();
  }
  return node == owner;
}

/// Calls `visit` with a node, all nodes in its blocks, and their return nodes.
template <typename Visit>
void for_all(Node* node, const Visit& visit) {
  visit(node);
  for (auto* block : node->blocks()) {
    for (auto* inner : block->nodes()) {
      for_all(inner, visit);
    }
    visit(block->return_node());
  }
}

/// Returns the nodes outside the `if` that compute the scores of one of its
/// blocks, from the product on, and those that read the dtypes of these values.
std::vector<Node*> needed_above(Block* block, const Value* scores) {
  std::vector<Node*> nodes;
  std::unordered_set<const Value*> above;
  walk_up(returned(block, scores), [&](Value* value) {
    above.insert(value);
    if (!is_in(value->node(), scores->node())) {
      nodes.push_back(value->node());
    }
  });
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (auto* input : nodes[i]->inputs()) {
      auto* node = input->node();
      if (is(node, {"prim::dtype"}) && above.count(node->input()) > 0) {
        nodes.insert(nodes.begin() + static_cast<std::ptrdiff_t>(i) + 1, node);
      }
    }
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

/// Returns the nodes after the `if`, up to `last`, that `last` depends on.
std::vector<Node*> needed_below(const Node* branch, Node* last) {
  std::unordered_set<const Node*> needed{last};
  std::vector<Node*> nodes;
  for (auto* node = last; node != branch; node = node->prev()) {
    if (needed.count(node) == 0) {
      continue;
    }
    nodes.push_back(node);
    for_all(node, [&](const Node* inner) {
      for (const auto* input : inner->inputs()) {
        needed.insert(input->node());
      }
    });
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

/// Returns whether the outputs of a node are read only by `nodes`, inside their
/// blocks, or inside `owner`.
bool is_private(
    const Node* node,
    const std::vector<Node*>& nodes,
    const Node* owner) {
  const auto is_own = [&](const torch::jit::Use& use) {
    return is_in(use.user, owner) ||
        std::any_of(nodes.begin(), nodes.end(), [&](const Node* one) {
             return is_in(use.user, one);
           });
  };
  const auto outputs = node->outputs();
  return std::all_of(outputs.begin(), outputs.end(), [&](const Value* value) {
    return std::all_of(value->uses().begin(), value->uses().end(), is_own);
  });
}

/// Returns whether a node from `first` on and before `last` switches modes.
bool switch_modes(Node* first, const Node* last) {
  for (auto* node = first; node != last; node = node->next()) {
    if (switches_modes(node)) {
      return true;
    }
  }
  return false;
}

/// Returns whether `nodes`, which precede the branch, may be copied into it.
/// The nodes in `below` may read them: they are copied as well.
bool may_enter_from_above(
    const std::vector<Node*>& nodes,
    const std::vector<Node*>& below,
    const Node* branch,
    const torch::jit::Module& module,
    torch::jit::AliasDb& aliases) {
  auto readers = nodes;
  readers.insert(readers.end(), below.begin(), below.end());
  return std::all_of(
             nodes.begin(),
             nodes.end(),
             [&](const Node* node) {
               return node->owningBlock() == branch->owningBlock() &&
                   node->blocks().empty() && node->outputs().size() == 1 &&
                   is_private(node, readers, branch);
             }) &&
      !is_changed(nodes, module, aliases) &&
      (nodes.empty() || !switch_modes(nodes.front(), branch));
}

bool may_enter_from_below(
    const std::vector<Node*>& nodes,
    Node* branch,
    const Node* last) {
  if (switch_modes(branch, last)) {
    return false;
  }
  for (auto* node = branch->next(); node != last; node = node->next()) {
    if (changes_something(node)) {
      return false;
    }
  }
  return std::all_of(nodes.begin(), nodes.end(), [&](Node* node) {
    bool draws = false;
    for_all(node, [&](const Node* inner) {
      draws = draws || inner->isNondeterministic() || inner->hasSideEffects();
    });
    return !draws || node == last || is_private(node, nodes, branch);
  });
}

/// Makes the nodes of a block read copied values instead of the originals.
void read_copies(Block* block, const Copies& copies) {
  const auto read = [&](Node* node) {
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      const auto copied = copies.find(node->input(i));
      if (copied != copies.end()) {
        node->replaceInput(i, copied->second);
      }
    }
  };
  for (auto* node : block->nodes()) {
    for_all(node, read);
  }
  read(block->return_node());
}

} // namespace

bool comes_from_branches(Node* softmax) {
  return branched_scores(softmax) != nullptr;
}

std::vector<Node*> enter_branches(
    const torch::jit::Module& module,
    const std::shared_ptr<Graph>& graph,
    Node* softmax) {
  auto* scores = branched_scores(softmax);
  auto* last = product_below(softmax);
  if (scores == nullptr || last == nullptr) {
    return {};
  }
  auto* branch = scores->node();
  const auto below = needed_below(branch, last);
  if (!may_enter_from_below(below, branch, last)) {
    return {};
  }
  torch::jit::AliasDb aliases(graph);
  std::vector<std::vector<Node*>> above;
  for (auto* block : branch->blocks()) {
    above.push_back(needed_above(block, scores));
    if (!may_enter_from_above(above.back(), below, branch, module, aliases)) {
      return {};
    }
  }
  std::vector<Node*> softmaxes;
  for (size_t i = 0; i < above.size(); ++i) {
    auto* block = branch->blocks()[i];
    Copies copies;
    {
      const torch::jit::WithInsertPoint point(*block->nodes().begin());
      insert_copies(*graph, above[i], copies);
    }
    read_copies(block, copies);
    for (size_t output = 0; output < branch->outputs().size(); ++output) {
      copies[branch->outputs()[output]] = block->outputs()[output];
    }
    const torch::jit::WithInsertPoint point(block);
    insert_copies(*graph, below, copies);
    block->registerOutput(copies.at(last->output()));
    softmaxes.push_back(copies.at(softmax->output())->node());
  }
  auto* result = branch->addOutput();
  result->setType(c10::TensorType::get());
  last->output()->replaceAllUsesWith(result);
  return softmaxes;
}

} // namespace torch_attention::graphs
