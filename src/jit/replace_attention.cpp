#include <jit/replace_attention.h>

#include <jit/causal_mask.h>
#include <operators/library.h>

#include <torch/csrc/jit/ir/constants.h>

#include <cmath>
#include <vector>

namespace torch_attention::graphs {

namespace {

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

/// Puts the dimensions of a tensor into the order that products have.
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

/// `constant`, times the constant factors, times those of the graph.
Value* insert_scale(
    Graph& graph,
    double constant,
    const std::vector<Factor>& factors) {
  for (const auto& factor : factors) {
    constant *= factor.number;
  }
  auto* scale = graph.insertConstant(constant);
  for (const auto& factor : factors) {
    if (factor.value != nullptr) {
      auto* number = factor.value->type()->isSubtypeOf(*c10::FloatType::get())
          ? factor.value
          : call(graph, "aten::Float", {factor.value});
      scale = call(
          graph, factor.divides ? "aten::div" : "aten::mul", {scale, number});
    }
  }
  return scale;
}

/// The probability by which weights are dropped.
Value* insert_dropout(Graph& graph, Value* dropout, Value* training) {
  if (dropout == nullptr) {
    return graph.insertConstant(0.0);
  }
  if (training == nullptr) {
    return dropout;
  }
  if (const auto known = torch::jit::toIValue(training)) {
    return known->toBool() ? dropout : graph.insertConstant(0.0);
  }
  auto* factor = call(graph, "aten::Float", {training});
  return call(graph, "aten::mul", {dropout, factor});
}

/// Returns whether dropout may happen.
bool may_drop(Value* dropout) {
  const auto known = torch::jit::toIValue(dropout);
  return !known || known->toDouble() > 0;
}

/// The mean of the values, for queries without a visible key: a finite fill
/// weighs all keys alike there, and our kernels give zeros.
Value* insert_means(Graph& graph, Value* hidden, Value* value, Value* output) {
  auto* none = call(graph, "aten::all", {hidden, int64_t{-1}, true});
  auto* mean =
      call(graph, "aten::mean", {value, std::vector<int64_t>{-2}, true});
  return call(graph, "aten::where", {none, mean, output});
}

/// The one mask that is made of all.
struct Masks {
  bool causal = false;
  Value* hidden = nullptr;
  Value* bias = nullptr;
  /// whether hidden scores stay finite
  bool fills = false;
};

void add_bias(Graph& graph, Masks& masks, Value* bias) {
  masks.bias = masks.bias == nullptr
      ? bias
      : call(graph, "aten::add", {masks.bias, bias});
}

Masks insert_masks(Graph& graph, const std::vector<Mask>& all) {
  Masks masks;
  for (const auto& mask : all) {
    if (mask.causal) {
      masks.causal = true;
      continue;
    }
    if (mask.kind == Mask::Kind::kAdded) {
      add_bias(
          graph,
          masks,
          mask.factor == 1
              ? mask.value
              : call(graph, "aten::mul", {mask.value, mask.factor}));
      continue;
    }
    auto* hidden = mask.kind == Mask::Kind::kHides
        ? mask.value
        : call(graph, "aten::logical_not", {mask.value});
    masks.fills = std::isfinite(mask.fill);
    masks.hidden = masks.hidden == nullptr
        ? hidden
        : call(graph, "aten::logical_or", {masks.hidden, hidden});
  }
  return masks;
}

std::string describe(const Masks& masks, bool drops, bool caps = false) {
  std::string text = masks.causal ? "causal attention" : "attention";
  const char* separator = " with ";
  for (const auto& [is_there, what] :
       {std::pair{caps, "a softcap"},
        std::pair{masks.hidden != nullptr, "a mask"},
        std::pair{masks.bias != nullptr, "a bias"},
        std::pair{drops, "dropout"}}) {
    if (is_there) {
      text += separator;
      text += what;
      separator = " and ";
    }
  }
  return text;
}

/// Inserts our operator for what `node` computes, and returns its output.
Value* put(
    Graph& graph,
    Node* node,
    at::ArrayRef<NamedValue> arguments,
    const Masks& masks,
    Value* scale,
    Value* dropout,
    bool enable_gqa,
    const std::optional<double>& softcap) {
  std::vector<NamedValue> named{
      NamedValue("causal", masks.causal),
      NamedValue("scale", scale),
      NamedValue("enable_gqa", enable_gqa),
      NamedValue("dropout_p", dropout)};
  if (masks.hidden != nullptr) {
    named.emplace_back("mask", masks.hidden);
  }
  if (masks.bias != nullptr) {
    named.emplace_back("bias", masks.bias);
  }
  if (softcap) {
    named.emplace_back("softcap", *softcap);
  }
  auto* output = call(graph, operators::attention_name(), arguments, named);
  output->node()->copyMetadata(node);
  output->setType(c10::TensorType::get());
  if (masks.fills) {
    output =
        insert_means(graph, masks.hidden, arguments[2].value(graph), output);
  }
  return output;
}

} // namespace

std::string replace_attention(const AttentionNodes& found) {
  auto& graph = *found.last->owningGraph();
  const torch::jit::WithInsertPoint point(found.last);
  auto* key = call(
      graph,
      "aten::transpose",
      {arrange(graph, found.transposed_key), int64_t{-2}, int64_t{-1}});
  const auto masks = insert_masks(graph, found.masks);
  auto* dropout = insert_dropout(graph, found.dropout, found.training);
  auto* output =
      put(graph,
          found.last,
          {arrange(graph, found.query), key, arrange(graph, found.value)},
          masks,
          insert_scale(graph, found.softcap.value_or(1.0), found.factors),
          dropout,
          /*enable_gqa=*/false,
          found.softcap);
  found.last->output()->replaceAllUsesWith(
      arrange(graph, output, found.result));
  return describe(masks, may_drop(dropout), found.softcap.has_value());
}

std::string replace_sdpa_node(const torch::jit::Module& module, Node* node) {
  auto& graph = *node->owningGraph();
  const torch::jit::WithInsertPoint point(node);
  auto* mask = node->namedInput("attn_mask");
  auto* dropout = node->namedInput("dropout_p");
  auto* is_causal = node->namedInput("is_causal");
  const auto gqa = torch::jit::toIValue(node->namedInput("enable_gqa"));
  const bool no_mask =
      torch::jit::toIValue(mask) && torch::jit::toIValue(mask)->isNone();
  const auto causal = torch::jit::toIValue(is_causal);
  Masks masks;
  masks.causal = !no_mask && causal && !causal->toBool() &&
      is_causal_mask(module, mask, MaskMeaning::kOfLibTorch);
  if (gqa && causal && !causal->toBool() && (no_mask || masks.causal)) {
    node->output()->replaceAllUsesWith(
        put(graph,
            node,
            {node->input(0), node->input(1), node->input(2)},
            masks,
            node->namedInput("scale"),
            dropout,
            gqa->toBool(),
            /*softcap=*/std::nullopt));
    return describe(masks, may_drop(dropout));
  }
  const auto positional = node->inputs().slice(0, 6);
  auto* output = call(
      graph,
      operators::sdpa_name(),
      std::vector<NamedValue>(positional.begin(), positional.end()),
      {NamedValue("scale", node->namedInput("scale")),
       NamedValue("enable_gqa", node->namedInput("enable_gqa"))});
  output->node()->copyMetadata(node);
  node->output()->replaceAllUsesWith(output);
  return std::string("scaled_dot_product_attention") +
      (causal && causal->toBool() ? ", causal" : "") +
      (no_mask ? "" : ", with a mask") +
      (may_drop(dropout) ? ", with dropout" : "");
}

} // namespace torch_attention::graphs
