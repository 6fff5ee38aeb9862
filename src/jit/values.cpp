#include <jit/values.h>

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>

namespace torch_attention::graphs {

namespace {

using torch::jit::Node;
using torch::jit::Value;

/// Returns whether a tensor is a single number. Scores have at least two
/// dimensions, so it does not change their shape.
bool is_one_number(const at::Tensor& x) {
  return x.numel() == 1 && x.dim() <= 2 && !x.is_complex();
}

} // namespace

bool is(const Node* node, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    return node->kind() == c10::Symbol::fromQualString(name);
  });
}

std::optional<c10::IValue> attribute_behind(
    const torch::jit::Module& module,
    const Value* value) {
  const auto* node = value->node();
  if (node->kind() == torch::jit::prim::Param) {
    const auto inputs = value->owningGraph()->inputs();
    return !inputs.empty() && inputs[0] == value && value->type()->is_module()
        ? std::make_optional<c10::IValue>(module._ivalue())
        : std::nullopt;
  }
  if (node->kind() != torch::jit::prim::GetAttr) {
    return std::nullopt;
  }
  const auto owner = attribute_behind(module, node->input());
  if (!owner || !owner->isObject()) {
    return std::nullopt;
  }
  return owner->toObject()->getAttr(node->s(torch::jit::attr::name));
}

bool is_product(const Node* node) {
  return is(
      node,
      {"aten::matmul",
       "aten::bmm",
       "aten::mm",
       "aten::baddbmm",
       "aten::einsum"});
}

bool is_view(const Node* node) {
  return is(node, {"aten::view", "aten::reshape"}) &&
      node->input(1)->type()->isSubtypeOf(*c10::ListType::ofInts());
}

std::optional<int64_t> rank_of_view(const Node* node) {
  if (!is_view(node)) {
    return std::nullopt;
  }
  const auto* sizes = node->input(1);
  if (const auto constant = torch::jit::toIValue(sizes)) {
    return static_cast<int64_t>(constant->toIntVector().size());
  }
  // A list that is changed later would have further uses.
  if (is(sizes->node(), {"prim::ListConstruct"}) && sizes->uses().size() == 1) {
    return static_cast<int64_t>(sizes->node()->inputs().size());
  }
  return std::nullopt;
}

bool is_tensor(const Value* value) {
  return value->type()->isSubtypeOf(*c10::TensorType::get());
}

std::optional<double> number_of(const Value* value) {
  const auto constant = torch::jit::toIValue(value);
  if (!constant) {
    return std::nullopt;
  }
  if (constant->isTensor()) {
    const auto& x = constant->toTensor();
    return x.defined() && is_one_number(x)
        ? std::make_optional(x.item<double>())
        : std::nullopt;
  }
  return constant->isDouble() || constant->isInt()
      ? std::make_optional(constant->toScalar().toDouble())
      : std::nullopt;
}

bool is_number(const torch::jit::Module& module, const Value* value) {
  const auto type = value->type();
  if (type->isSubtypeOf(*c10::NumberType::get())) {
    return true;
  }
  if (number_of(value)) {
    return true;
  }
  if (const auto attribute = attribute_behind(module, value)) {
    return attribute->isTensor() && attribute->toTensor().defined() &&
        is_one_number(attribute->toTensor());
  }
  const auto* node = value->node();
  if (is(node, {"prim::NumToTensor", "aten::scalar_tensor"})) {
    return true;
  }
  if (is(node, {"aten::tensor"})) {
    return node->input(0)->type()->isSubtypeOf(*c10::NumberType::get());
  }
  if (is(node,
         {"aten::sqrt",
          "aten::rsqrt",
          "aten::reciprocal",
          "aten::to",
          "aten::detach"})) {
    return is_number(module, node->input(0));
  }
  return is(node,
            {"aten::pow",
             "aten::mul",
             "aten::div",
             "aten::floor_divide",
             "aten::add",
             "aten::sub"}) &&
      is_number(module, node->input(0)) && is_number(module, node->input(1));
}

} // namespace torch_attention::graphs
