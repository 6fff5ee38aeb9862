#include <jit/changes.h>

#include <jit/values.h>

#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <vector>

namespace torch_attention::graphs {

namespace {

using torch::jit::Node;
using torch::jit::Value;
using torch::jit::ValueSet;

/// Calls `visit` with the nodes that may run after `node` has begun: itself,
/// its successors and, in a loop, the loop. Returns whether `visit` returned
/// true for one.
template <typename Visit>
bool any_from(Node* node, const Visit& visit) {
  auto* block = node->owningBlock();
  for (; node != block->return_node(); node = node->next()) {
    if (visit(node)) {
      return true;
    }
  }
  auto* owner = block->owningNode();
  if (owner == nullptr) {
    return false;
  }
  if (is(owner, {"prim::Loop"}) && visit(owner)) {
    return true;
  }
  return any_from(owner->next(), visit);
}

/// Returns whether `visit` returns true for a node in a block or an inner
/// block.
template <typename Visit>
bool any_in(torch::jit::Block* block, const Visit& visit) {
  auto nodes = block->nodes();
  return std::any_of(nodes.begin(), nodes.end(), [&](Node* node) {
    const auto blocks = node->blocks();
    return visit(node) ||
        std::any_of(blocks.begin(), blocks.end(), [&](auto* inner) {
             return any_in(inner, visit);
           });
  });
}

/// Returns which memory the output of an operator may share, by its schema;
/// null if it shares none, or if there is no schema.
const c10::AliasInfo* alias_of(const Value* value) {
  const auto* schema = value->node()->maybeSchema();
  return schema == nullptr || value->offset() >= schema->returns().size()
      ? nullptr
      : schema->returns()[value->offset()].alias_info();
}

/// Returns the value that owns the memory of `value`: the one that it views.
const Value* owner_of(const Value* value) {
  while (true) {
    const auto* node = value->node();
    if (is(node, {"prim::ListUnpack"})) {
      value = node->input(0);
      continue;
    }
    const auto* alias = alias_of(value);
    if (alias == nullptr) {
      return value;
    }
    // In a list of views, as `chunk` returns, the elements have the alias sets.
    const auto& sets = alias->containedTypes().empty()
        ? alias->beforeSets()
        : alias->containedTypes().front().beforeSets();
    const auto& arguments = node->schema().arguments();
    const auto viewed = std::find_if(
        arguments.begin(), arguments.end(), [&](const c10::Argument& argument) {
          return !sets.empty() && argument.alias_info() != nullptr &&
              argument.alias_info()->beforeSets() == sets;
        });
    if (viewed == arguments.end()) {
      return value;
    }
    value = node->input(static_cast<size_t>(viewed - arguments.begin()));
  }
}

/// Finds changes in place. LibTorch's alias analysis alone finds too many: it
/// assumes that all attributes of a model, and all elements of lists, may share
/// memory.
class Changes {
 public:
  Changes(
      const torch::jit::Module& module,
      torch::jit::Graph& graph,
      torch::jit::AliasDb& aliases)
      : module_(module),
        keeps_attributes_(!any_in(
            graph.block(),
            [](const Node* node) { return is(node, {"prim::SetAttr"}); })),
        aliases_(aliases) {}

  /// Returns whether `node`, or a node in its blocks, may change one of the
  /// values.
  bool may_change(Node* node, const ValueSet& values) const {
    const auto blocks = node->blocks();
    if (!blocks.empty()) {
      return std::any_of(blocks.begin(), blocks.end(), [&](auto* block) {
        return any_in(block, [&](Node* inner) {
          return inner->blocks().empty() && may_change(inner, values);
        });
      });
    }
    if (!aliases_.writesToAlias(node, values)) {
      return false;
    }
    const auto* schema = node->maybeSchema();
    if (schema == nullptr) {
      return true;
    }
    for (size_t i = 0; i < schema->arguments().size(); ++i) {
      const auto* alias = schema->arguments()[i].alias_info();
      if (alias == nullptr || !alias->isWrite()) {
        continue;
      }
      auto* written = node->input(i);
      if (std::any_of(values.begin(), values.end(), [&](const Value* value) {
            return aliases_.mayAlias({written}, {value}) &&
                !are_apart(written, value);
          })) {
        return true;
      }
    }
    return false;
  }

 private:
  /// Returns whether two tensors certainly have separate memory.
  bool are_apart(const Value* a, const Value* b) const {
    if (!is_tensor(a) || !is_tensor(b)) {
      return false;
    }
    a = owner_of(a);
    b = owner_of(b);
    if (a == b) {
      return false;
    }
    if (is_new(a) && is_new(b)) {
      return true;
    }
    const auto x = attribute(a);
    const auto y = attribute(b);
    return (x && is_new(b)) || (is_new(a) && y) ||
        (x && y && !x->is_alias_of(*y));
  }

  /// Returns whether an operator of LibTorch allocated the memory of a tensor.
  static bool is_new(const Value* value) {
    const auto* node = value->node();
    return is_tensor(value) && node->maybeSchema() != nullptr &&
        node->kind().is_aten() && alias_of(value) == nullptr;
  }

  /// Returns the tensor in an attribute of the model, if no node sets
  /// attributes.
  std::optional<torch::Tensor> attribute(const Value* value) const {
    const auto found = attribute_behind(module_, value);
    return keeps_attributes_ && found && found->isTensor()
        ? std::make_optional(found->toTensor())
        : std::nullopt;
  }

  const torch::jit::Module& module_;
  bool keeps_attributes_;
  torch::jit::AliasDb& aliases_;
};

/// `values_of` returns the values that must not change once a node has begun.
template <typename ValuesOf>
bool is_changed(
    const std::vector<Node*>& nodes,
    const Changes& changes,
    const ValuesOf& values_of) {
  const std::unordered_set<Node*> own(nodes.begin(), nodes.end());
  return std::any_of(nodes.begin(), nodes.end(), [&](Node* reader) {
    const auto values = values_of(reader);
    return any_from(reader, [&](Node* node) {
      return own.count(node) == 0 && changes.may_change(node, values);
    });
  });
}

/// Returns what a node reads, including tensors in lists, and, unless it is the
/// last one, what it computes.
ValueSet values_of(const Node* reader, bool is_last) {
  ValueSet values(reader->inputs().begin(), reader->inputs().end());
  for (auto* input : reader->inputs()) {
    if (is(input->node(), {"prim::ListConstruct"})) {
      const auto elements = input->node()->inputs();
      values.insert(elements.begin(), elements.end());
    }
  }
  if (!is_last) {
    values.insert(reader->outputs().begin(), reader->outputs().end());
  }
  return values;
}

} // namespace

bool changes_something(Node* node) {
  const auto* schema = node->maybeSchema();
  const bool changes = schema != nullptr ? schema->is_mutable()
                                         : is(node,
                                              {"prim::SetAttr",
                                               "prim::CallMethod",
                                               "prim::CallFunction",
                                               "prim::fork",
                                               "prim::PythonOp"});
  const auto blocks = node->blocks();
  return changes || std::any_of(blocks.begin(), blocks.end(), [](auto* block) {
           return any_in(block, changes_something);
         });
}

bool switches_modes(Node* node) {
  const auto blocks = node->blocks();
  return is(node,
            {"prim::Enter",
             "prim::Exit",
             "aten::set_grad_enabled",
             "aten::_set_grad_enabled"}) ||
      std::any_of(blocks.begin(), blocks.end(), [](auto* block) {
           return any_in(block, switches_modes);
         });
}

bool is_changed(
    const std::vector<Node*>& nodes,
    const torch::jit::Module& module,
    torch::jit::AliasDb& aliases) {
  if (nodes.empty()) {
    return false;
  }
  const Changes changes(module, *nodes.front()->owningGraph(), aliases);
  return is_changed(nodes, changes, [&](const Node* reader) {
    return values_of(reader, reader == nodes.back());
  });
}

bool is_changed(
    const AttentionNodes& found,
    const torch::jit::Module& module,
    torch::jit::AliasDb& aliases) {
  const Changes changes(module, *found.last->owningGraph(), aliases);
  return is_changed(found.nodes, changes, [&](const Node* reader) {
    auto values = values_of(reader, reader == found.last);
    if (reader == found.first) {
      values.insert({found.query.value, found.transposed_key.value});
    }
    if (reader == found.last) {
      values.insert(found.value.value);
    }
    return values;
  });
}

} // namespace torch_attention::graphs
