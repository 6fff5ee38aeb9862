#include <jit/look_alike.h>

#include <jit/values.h>

#include <algorithm>
#include <functional>
#include <unordered_set>
#include <vector>

namespace torch_attention::graphs {

namespace {

using torch::jit::Node;
using torch::jit::Value;

/// Returns whether a tensor is a weight, possibly transposed or cast.
bool is_weight(const Value* value) {
  while (
      is(value->node(),
         {"aten::t",
          "aten::transpose",
          "aten::permute",
          "aten::numpy_T",
          "aten::to"})) {
    value = value->node()->input(0);
  }
  return is(value->node(), {"prim::GetAttr", "prim::Constant"});
}

/// Returns whether a node multiplies two computed tensors, and not a tensor
/// with the weight of a layer.
bool is_product_of_results(Node* node) {
  if (!is_product(node)) {
    return false;
  }
  const auto inputs = is(node, {"aten::einsum"})
      ? node->input(1)->node()->inputs()
      : node->inputs().slice(is(node, {"aten::baddbmm"}) ? 1 : 0, 2);
  return std::none_of(inputs.begin(), inputs.end(), is_weight);
}

/// Returns whether a node is a layer. The search for products ends there.
bool is_layer(const Node* node) {
  return is_product(node) ||
      is(node,
         {"aten::linear",
          "aten::addmm",
          "aten::conv1d",
          "aten::conv2d",
          "aten::_convolution",
          "aten::embedding",
          "aten::layer_norm",
          "aten::softmax",
          "aten::scaled_dot_product_attention"});
}

/// Returns the values that an output of `node` may be computed from: its inputs
/// and the outputs of its blocks.
std::vector<Value*> sources_of(Node* node) {
  std::vector<Value*> sources(node->inputs().begin(), node->inputs().end());
  for (auto* block : node->blocks()) {
    sources.insert(
        sources.end(), block->outputs().begin(), block->outputs().end());
  }
  return sources;
}

using Seen = std::unordered_set<Value*>;

bool comes_from_product(Value* value, Seen& seen) {
  if (!seen.insert(value).second) {
    return false;
  }
  auto* node = value->node();
  if (is_product_of_results(node)) {
    return true;
  }
  if (is_layer(node)) {
    return false;
  }
  const auto sources = sources_of(node);
  return std::any_of(sources.begin(), sources.end(), [&](Value* source) {
    return comes_from_product(source, seen);
  });
}

/// Returns the values that may be computed from an input of a node.
std::vector<Value*> results_of(const torch::jit::Use& use) {
  auto* node = use.user;
  if (node->kind() == torch::jit::prim::Return) {
    auto* owner = node->owningBlock()->owningNode();
    return owner == nullptr
        ? std::vector<Value*>()
        : std::vector<Value*>(owner->outputs().begin(), owner->outputs().end());
  }
  std::vector<Value*> results(node->outputs().begin(), node->outputs().end());
  for (auto* block : node->blocks()) {
    results.insert(
        results.end(), block->inputs().begin(), block->inputs().end());
  }
  return results;
}

bool goes_to_product(Value* value, Seen& seen) {
  if (!seen.insert(value).second) {
    return false;
  }
  const auto& uses = value->uses();
  return std::any_of(uses.begin(), uses.end(), [&](const auto& use) {
    if (is_product_of_results(use.user)) {
      return true;
    }
    if (is_layer(use.user)) {
      return false;
    }
    const auto results = results_of(use);
    return std::any_of(results.begin(), results.end(), [&](Value* result) {
      return goes_to_product(result, seen);
    });
  });
}

bool leads_to_product(Value* scores, bool through_branches, Seen& seen) {
  if (!seen.insert(scores).second) {
    return false;
  }
  auto* node = scores->node();
  if (is_product(node)) {
    return true;
  }
  if (through_branches && is(node, {"prim::If"})) {
    const auto blocks = node->blocks();
    return std::any_of(blocks.begin(), blocks.end(), [&](auto* block) {
      return leads_to_product(block->outputs()[scores->offset()], true, seen);
    });
  }
  if (!is_view(node) &&
      !is(node,
          {"aten::add",
           "aten::mul",
           "aten::where",
           "aten::div",
           "aten::masked_fill",
           "aten::tanh",
           "aten::alias",
           "aten::to",
           "aten::type_as",
           "aten::clone",
           "aten::contiguous"})) {
    return false;
  }
  const auto inputs = node->inputs();
  return std::any_of(inputs.begin(), inputs.end(), [&](Value* input) {
    return is_tensor(input) && leads_to_product(input, through_branches, seen);
  });
}

} // namespace

bool leads_to_product(Value* scores, bool through_branches) {
  Seen seen;
  return leads_to_product(scores, through_branches, seen);
}

bool looks_like_attention(Node* softmax) {
  Seen above;
  Seen below;
  return comes_from_product(softmax->input(0), above) &&
      goes_to_product(softmax->output(), below);
}

} // namespace torch_attention::graphs
