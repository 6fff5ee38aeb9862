#include <jit/replace_attention.h>

#include <jit/copies.h>
#include <jit/values.h>
#include <operators/library.h>

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <vector>

namespace torch_attention::graphs {

namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::NamedValue;
using torch::jit::Node;
using torch::jit::Value;

Value* call(
    Graph& graph,
    const char* name,
    at::ArrayRef<NamedValue> arguments,
    at::ArrayRef<NamedValue> named = {}) {
  return graph.insert(c10::Symbol::fromQualString(name), arguments, named);
}

Value* list(
    Graph& graph,
    const c10::TypePtr& type,
    const std::vector<Value*>& values) {
  return graph.insertNode(graph.createList(type, values))->output();
}

/// Permutes a tensor, and inserts dimensions of size 1 where `order` is -1.
Value* arrange(Graph& graph, Value* value, const std::vector<int64_t>& order) {
  if (order.empty()) {
    return value;
  }
  std::vector<int64_t> present;
  for (const auto dimension : order) {
    if (dimension >= 0) {
      present.push_back(dimension);
    }
  }
  value = call(graph, "aten::permute", {value, present});
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] < 0) {
      value = call(graph, "aten::unsqueeze", {value, static_cast<int64_t>(i)});
    }
  }
  return value;
}

Value* arrange(Graph& graph, const Arranged& arranged) {
  return arrange(graph, arranged.value, arranged.order);
}

/// Inserts `constant` times the factors. The product is NaN if one of them is
/// not a single number when the graph runs.
///
/// Inserts an operator even if all factors are known: TorchScript saves large
/// floats as ints, and then does not load them as floats.
Value* insert_product(
    Graph& graph,
    double constant,
    const std::vector<Factor>& factors) {
  std::vector<Value*> numbers;
  c10::List<bool> divides;
  for (const auto& factor : factors) {
    constant *= factor.number;
    if (factor.value == nullptr) {
      continue;
    }
    numbers.push_back(
        is_tensor(factor.value)
            ? factor.value
            : call(graph, "prim::NumToTensor", {factor.value}));
    divides.push_back(factor.divides);
  }
  return call(
      graph,
      operators::product_name(),
      {constant,
       list(graph, c10::TensorType::get(), numbers),
       graph.insertConstant(c10::IValue(divides))});
}

/// Returns whether the product of the factors is known to be 1.
bool is_one(const std::vector<Factor>& factors) {
  return std::all_of(factors.begin(), factors.end(), [](const Factor& factor) {
    return factor.value == nullptr && factor.number == 1;
  });
}

/// Inserts a list of dtypes; `casts` are dtypes or tensors that have one.
Value* insert_dtypes(Graph& graph, const std::vector<Value*>& casts) {
  std::vector<Value*> dtypes;
  dtypes.reserve(casts.size());
  for (auto* cast : casts) {
    dtypes.push_back(
        is_tensor(cast) ? call(graph, "prim::dtype", {cast}) : cast);
  }
  return list(graph, c10::IntType::get(), dtypes);
}

/// Inserts the dtypes that weights get from casts, biases and factors. They
/// only matter if the product with values accepts two dtypes, as an einsum of
/// one token does.
Value* insert_dtypes_of_weights(
    Graph& graph,
    const AttentionNodes& found,
    Value* query) {
  if (!is(found.last, {"aten::einsum"})) {
    return insert_dtypes(graph, {});
  }
  if (found.weights_cast != nullptr) {
    return insert_dtypes(graph, {found.weights_cast});
  }
  auto dtypes = found.casts;
  const auto add = [&](Value* other) {
    if (other != nullptr && is_tensor(other)) {
      dtypes.push_back(call(graph, "aten::result_type", {query, other}));
    }
  };
  for (const auto& mask : found.masks) {
    add(mask.kind == Mask::Kind::kBias ? mask.value : nullptr);
  }
  for (const auto& factor : found.factors) {
    add(factor.value);
  }
  return insert_dtypes(graph, dtypes);
}

/// Inserts the probability of dropout, which is 0 outside of training.
Value* insert_dropout(Graph& graph, Value* dropout, Value* training) {
  if (dropout == nullptr) {
    return graph.insertConstant(0.0);
  }
  if (const auto known = torch::jit::toIValue(training)) {
    return known->toBool() ? dropout : graph.insertConstant(0.0);
  }
  auto* factor = call(graph, "aten::Float", {training});
  return call(graph, "aten::mul", {dropout, factor});
}

/// Returns whether the probability of dropout may be above 0.
bool may_drop(const Value* dropout) {
  const auto known = torch::jit::toIValue(dropout);
  return !known || known->toDouble() > 0;
}

/// Returns whether a value is known to be None.
bool is_none(const Value* value) {
  const auto known = torch::jit::toIValue(value);
  return known && known->isNone();
}

/// The masks of an attention, as arguments of our operators.
struct MaskValues {
  std::vector<Value*> hiding; // bool, true hides
  std::vector<Value*> fills; // floats
  std::vector<Value*> biases;
};

/// Inserts the masks; `in_view` gives one the dimensions of the view.
template <typename InView>
MaskValues insert_masks(
    Graph& graph,
    const std::vector<Mask>& masks,
    const InView& in_view) {
  MaskValues values;
  for (const auto& mask : masks) {
    auto* own = mask.in_view ? mask.value : in_view(mask.value);
    const auto insert_factor = [&] {
      return insert_product(graph, 1.0, mask.factors);
    };
    if (mask.kind == Mask::Kind::kBias) {
      values.biases.push_back(
          is_one(mask.factors)
              ? own
              : call(graph, "aten::mul", {own, insert_factor()}));
      continue;
    }
    values.fills.push_back(insert_factor());
    values.hiding.push_back(
        mask.kind == Mask::Kind::kHides
            ? own
            : call(graph, "aten::logical_not", {own}));
  }
  return values;
}

/// Combines all values by a binary operator; returns null if there are none.
Value* join(Graph& graph, const char* name, const std::vector<Value*>& values) {
  Value* joined = nullptr;
  for (auto* value : values) {
    joined = joined == nullptr ? value : call(graph, name, {joined, value});
  }
  return joined;
}

std::string describe(const AttentionNodes& found, bool drops) {
  const auto has = [&](bool bias) {
    for (const auto& mask : found.masks) {
      if ((mask.kind == Mask::Kind::kBias) == bias) {
        return true;
      }
    }
    return false;
  };
  std::string text = "attention";
  const char* separator = " with ";
  for (const auto& [is_there, what] :
       {std::pair{found.softcap.has_value(), "a softcap"},
        std::pair{has(false), "a mask"},
        std::pair{has(true), "a bias"},
        std::pair{drops, "dropout"}}) {
    if (is_there) {
      text += separator;
      text += what;
      separator = " and ";
    }
  }
  return text;
}

/// Lets `insert_ours` compute the output of the last of `nodes` if `condition`
/// holds, and copies of the nodes otherwise.
template <typename InsertOurs>
void replace_if(
    Graph& graph,
    Value* condition,
    const std::vector<Node*>& nodes,
    const InsertOurs& insert_ours) {
  auto* last = nodes.back();
  auto* choice = graph.insertNode(
      graph.create(torch::jit::prim::If, {condition}, /*num_outputs=*/1));
  const auto add_block = [&](const auto& insert) {
    auto* block = choice->addBlock();
    const torch::jit::WithInsertPoint point(block);
    block->registerOutput(insert());
  };
  add_block([&] {
    auto* output = insert_ours();
    output->setType(c10::TensorType::get());
    return output;
  });
  add_block([&] {
    Copies copies;
    insert_copies(graph, nodes, copies);
    return copies.at(last->output());
  });
  choice->output()->setType(c10::TensorType::get());
  last->output()->replaceAllUsesWith(choice->output());
}

} // namespace

std::string replace_attention(const AttentionNodes& found) {
  auto& graph = *found.last->owningGraph();
  const torch::jit::WithInsertPoint point(found.last);
  auto* own_query = arrange(graph, found.query);
  auto* own_key = arrange(graph, found.transposed_key);
  const auto in_view = [&](Value* x) {
    return found.view == nullptr
        ? x
        : call(
              graph,
              operators::in_view_name(),
              {x, own_query, own_key, found.view, found.view_back});
  };
  auto* query = in_view(own_query);
  auto* transposed_key = in_view(own_key);
  auto* value = in_view(arrange(graph, found.value));
  auto* scale =
      insert_product(graph, found.softcap.value_or(1.0), found.factors);
  const auto masks = insert_masks(graph, found.masks, in_view);
  auto* condition = call(
      graph,
      operators::takes_name(),
      {query,
       transposed_key,
       value,
       found.dim == nullptr ? graph.insertConstant(int64_t{-1}) : found.dim,
       scale,
       insert_dtypes(graph, found.casts),
       list(graph, c10::TensorType::get(), masks.hiding),
       list(graph, c10::FloatType::get(), masks.fills),
       list(graph, c10::TensorType::get(), masks.biases),
       insert_dtypes_of_weights(graph, found, query)});
  auto* dropout = insert_dropout(graph, found.dropout, found.training);
  replace_if(graph, condition, found.nodes, [&] {
    std::vector<NamedValue> named{
        NamedValue("scale", scale), NamedValue("dropout_p", dropout)};
    const auto add = [&](const char* name, Value* given) {
      if (given != nullptr) {
        named.emplace_back(name, given);
      }
    };
    add("mask", join(graph, "aten::logical_or", masks.hiding));
    add("bias", join(graph, "aten::add", masks.biases));
    if (found.softcap) {
      named.emplace_back("softcap", *found.softcap);
    }
    auto* key = call(
        graph, "aten::transpose", {transposed_key, int64_t{-2}, int64_t{-1}});
    auto* output =
        call(graph, operators::attention_name(), {query, key, value}, named);
    output->node()->copyMetadata(found.last);
    if (found.view != nullptr) {
      return call(
          graph, operators::out_of_view_name(), {output, own_query, own_key});
    }
    return arrange(graph, output, found.result);
  });
  return describe(found, may_drop(dropout));
}

std::string replace_sdpa_node(Node* node) {
  auto& graph = *node->owningGraph();
  const torch::jit::WithInsertPoint point(node);
  const auto positional = node->inputs().slice(0, 6);
  const std::vector<NamedValue> arguments(positional.begin(), positional.end());
  const std::vector<NamedValue> named{
      NamedValue("scale", node->namedInput("scale")),
      NamedValue("enable_gqa", node->namedInput("enable_gqa"))};
  auto* condition = call(graph, operators::takes_sdpa_name(), arguments, named);
  replace_if(graph, condition, {node}, [&] {
    auto* output = call(graph, operators::sdpa_name(), arguments, named);
    output->node()->copyMetadata(node);
    return output;
  });
  const auto causal = torch::jit::toIValue(node->namedInput("is_causal"));
  return std::string("scaled_dot_product_attention") +
      (causal && causal->toBool() ? ", causal" : "") +
      (is_none(node->namedInput("attn_mask")) ? "" : ", with a mask") +
      (may_drop(node->namedInput("dropout_p")) ? ", with dropout" : "");
}

} // namespace torch_attention::graphs
