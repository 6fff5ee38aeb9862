#include <jit/find_attention.h>

#include <jit/causal_mask.h>

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace torch_attention::graphs {

namespace {

using torch::jit::Node;
using torch::jit::Value;

/// Fills that hide all keys alike when all are hidden: nothing that scores may
/// be is left of them beside it.
constexpr double kAbsorbs = -1e6;

bool is(const Node* node, std::initializer_list<const char*> names) {
  for (const auto* name : names) {
    if (node->kind() == c10::Symbol::fromQualString(name)) {
      return true;
    }
  }
  return false;
}

/// Returns the number that a value is: a constant, or a tensor of one element.
std::optional<double> number_of(const Value* value) {
  const auto constant = torch::jit::toIValue(value);
  if (constant && constant->isScalar()) {
    return constant->toScalar().toDouble();
  }
  if (constant && constant->isTensor() && constant->toTensor().numel() == 1 &&
      !constant->toTensor().is_complex()) {
    return constant->toTensor().item<double>();
  }
  return std::nullopt;
}

/// Returns whether a value is a positive number that follows from sizes and
/// attributes.
bool is_positive_number(const torch::jit::Module& module, const Value* value) {
  if (const auto number = number_of(value)) {
    return *number > 0;
  }
  if (const auto attribute = attribute_behind(module, value)) {
    return attribute->isScalar() && attribute->toScalar().toDouble() > 0;
  }
  const auto* node = value->node();
  if (is(node, {"aten::size"})) {
    return true;
  }
  if (!is(node,
          {"prim::NumToTensor",
           "aten::Int",
           "aten::Float",
           "aten::ScalarImplicit",
           "aten::IntImplicit",
           "aten::sqrt",
           "aten::rsqrt",
           "aten::reciprocal",
           "aten::pow",
           "aten::mul",
           "aten::div",
           "aten::to",
           "aten::tensor",
           "aten::__getitem__",
           "prim::ListUnpack"})) {
    return false;
  }
  return is_positive_number(module, node->input(0)) &&
      (!is(node, {"aten::mul", "aten::div"}) ||
       is_positive_number(module, node->input(1)));
}

/// Goes up from a softmax to the product of queries and keys.
class Upwards {
 public:
  Upwards(const torch::jit::Module& module, AttentionNodes& found)
      : module_(module), found_(found) {}

  /// Returns why there is no way, or nothing.
  std::string walk(Value* scores) {
    while (true) {
      auto* node = scores->node();
      if (scores->uses().size() > 1) {
        return "its scores are read elsewhere as well";
      }
      if (is(node, {"aten::matmul", "aten::bmm"})) {
        return take_product(node, node->input(0), node->input(1));
      }
      if (is(node, {"aten::baddbmm"})) {
        return take_added_product(node);
      }
      Value* next = nullptr;
      const auto reason = step(node, next);
      if (next == nullptr) {
        return reason;
      }
      scores = next;
    }
  }

  /// Whether it came to a product.
  bool has_product() const {
    return has_product_;
  }

 private:
  std::string take_product(Node* node, Value* query, Value* key) {
    if (!is(key->node(),
            {"aten::transpose",
             "aten::permute",
             "aten::t",
             "aten::mT",
             "aten::numpy_T",
             "aten::swapaxes",
             "aten::swapdims"})) {
      return "the second factor of its scores is not transposed";
    }
    has_product_ = true;
    found_.query = query;
    found_.transposed_key = key;
    found_.first = node;
    return {};
  }

  /// beta * bias + alpha * (q k)
  std::string take_added_product(Node* node) {
    const auto beta = number_of(node->input(3));
    const auto alpha = number_of(node->input(4));
    if (beta != 1.0 || alpha != 1.0) {
      has_product_ = true;
      return "its product of queries and keys has factors of its own";
    }
    add_mask(node->input(0), Mask::Kind::kAdded);
    return take_product(node, node->input(1), node->input(2));
  }

  void add_mask(
      Value* value,
      Mask::Kind kind,
      double fill = -std::numeric_limits<double>::infinity()) {
    Mask mask;
    mask.causal = is_causal_mask(
        module_,
        value,
        kind == Mask::Kind::kHides ? MaskMeaning::kHides
                                   : MaskMeaning::kOfLibTorch);
    mask.value = value;
    mask.kind = kind;
    mask.fill = fill;
    // Of those, what comes later applies to the fill as well.
    mask.factor = constant_;
    found_.masks.push_back(mask);
  }

  /// One operator up. `next` stays null if there is no way.
  std::string step(Node* node, Value*& next) {
    if (is(node,
           {"aten::to", "aten::type_as", "aten::contiguous", "aten::float"})) {
      next = node->input(0);
      return {};
    }
    if (is(node, {"aten::div", "aten::div_", "aten::mul", "aten::mul_"})) {
      return step_factor(node, next);
    }
    if (is(node, {"aten::masked_fill", "aten::masked_fill_"})) {
      return step_fill(
          node->input(1),
          Mask::Kind::kHides,
          node->input(2),
          node->input(0),
          next);
    }
    if (is(node, {"aten::where"}) && node->inputs().size() == 3) {
      const bool fills_last = number_of(node->input(2)).has_value();
      return step_fill(
          node->input(0),
          fills_last ? Mask::Kind::kAttends : Mask::Kind::kHides,
          node->input(fills_last ? 2 : 1),
          node->input(fills_last ? 1 : 2),
          next);
    }
    if (is(node, {"aten::add", "aten::add_"})) {
      return step_added(node, next);
    }
    return "its scores come from " + std::string(node->kind().toQualString());
  }

  std::string step_factor(Node* node, Value*& next) {
    const bool divides = is(node, {"aten::div", "aten::div_"});
    if (divides && node->inputs().size() != 2) {
      return "its scores are rounded";
    }
    auto* scores = node->input(0);
    auto* other = node->input(1);
    if (!divides && number_of(scores)) {
      std::swap(scores, other);
    }
    Factor factor;
    factor.divides = divides;
    if (const auto number = number_of(other)) {
      factor.number = divides ? 1 / *number : *number;
      if (!(factor.number > 0) || !std::isfinite(factor.number)) {
        return "its scores are multiplied by " + std::to_string(factor.number);
      }
      constant_ *= factor.number;
    } else if (is_positive_number(module_, other)) {
      factor.value = other;
      varies_ = true;
    } else {
      return "its scores are multiplied by a tensor";
    }
    found_.factors.push_back(factor);
    next = scores;
    return {};
  }

  std::string step_fill(
      Value* mask,
      Mask::Kind kind,
      Value* with,
      Value* scores,
      Value*& next) {
    const auto fill = number_of(with);
    const bool causal = kind == Mask::Kind::kHides
        ? is_causal_mask(module_, mask, MaskMeaning::kHides)
        : is_causal_mask(module_, mask, MaskMeaning::kOfLibTorch);
    const bool hides = fill &&
        (*fill * constant_ <= kAbsorbs ||
         (causal && *fill * constant_ <= kAbsorbs / 100));
    if (!hides) {
      return "its masked scores become " +
          (fill ? std::to_string(*fill) : std::string("a tensor")) +
          ", which may not hide them";
    }
    add_mask(mask, kind, *fill);
    next = scores;
    return {};
  }

  std::string step_added(Node* node, Value*& next) {
    if (node->inputs().size() == 3 && number_of(node->input(2)) != 1.0) {
      return "what is added to its scores has a factor";
    }
    if (varies_) {
      return "what is added to its scores is divided by what varies";
    }
    // The scores are what leads to a product.
    for (const size_t i : {0, 1}) {
      if (leads_to_product(node->input(i))) {
        add_mask(node->input(1 - i), Mask::Kind::kAdded);
        next = node->input(i);
        return {};
      }
    }
    return "its scores are a sum";
  }

  bool leads_to_product(Value* value) const {
    AttentionNodes ignored;
    Upwards upwards(module_, ignored);
    upwards.walk(value);
    return upwards.has_product();
  }

  const torch::jit::Module& module_;
  AttentionNodes& found_;
  /// The product of the constant factors so far.
  double constant_ = 1.0;
  /// Whether there were others.
  bool varies_ = false;
  bool has_product_ = false;
};

/// Goes down from a softmax to the product of weights and values. Returns why
/// there is no way, or nothing.
std::string walk_down(
    Value* weights,
    AttentionNodes& found,
    bool& has_product) {
  while (true) {
    if (weights->uses().size() != 1) {
      for (const auto& use : weights->uses()) {
        has_product =
            has_product || is(use.user, {"aten::matmul", "aten::bmm"});
      }
      return weights->uses().empty() ? "nothing reads its weights"
                                     : "its weights are read elsewhere as well";
    }
    const auto& use = weights->uses().front();
    auto* node = use.user;
    if (is(node, {"aten::matmul", "aten::bmm"})) {
      has_product = true;
      if (use.offset != 0) {
        return "its weights are the second factor";
      }
      found.value = node->input(1);
      found.last = node;
      return {};
    }
    if (is(node, {"aten::dropout", "aten::dropout_"}) && use.offset == 0) {
      if (found.dropout != nullptr) {
        return "its weights are dropped twice";
      }
      found.dropout = node->input(1);
      found.training = node->input(2);
    } else if (
        !is(node, {"aten::to", "aten::type_as", "aten::contiguous"}) ||
        use.offset != 0) {
      return "its weights go to " + std::string(node->kind().toQualString());
    }
    weights = node->output(0);
  }
}

/// Returns whether a query all of whose keys are hidden would weigh them alike,
/// and which keys those are is up to several masks.
bool fills_beside_others(const AttentionNodes& found) {
  return found.masks.size() > 1 &&
      std::any_of(found.masks.begin(), found.masks.end(), [](const Mask& mask) {
           return mask.kind != Mask::Kind::kAdded && !mask.causal &&
               std::isfinite(mask.fill);
         });
}

} // namespace

Finding find_attention(const torch::jit::Module& module, Node* softmax) {
  AttentionNodes found;
  found.softmax = softmax;
  Upwards upwards(module, found);
  const auto above = upwards.walk(softmax->input(0));
  bool has_product = false;
  const auto below = walk_down(softmax->output(), found, has_product);
  Finding finding;
  if (!has_product || !upwards.has_product()) {
    // One product alone is not attention, two are.
    if (has_product && !above.empty()) {
      finding.reason = above;
    } else if (upwards.has_product() && !below.empty()) {
      finding.reason = below;
    }
    return finding;
  }
  const auto dim = torch::jit::toIValue(softmax->input(1));
  const auto type = softmax->output()->type()->cast<c10::TensorType>();
  const bool is_last = dim && dim->isInt() &&
      (dim->toInt() == -1 ||
       (type && type->dim() &&
        dim->toInt() == static_cast<int64_t>(*type->dim()) - 1));
  if (!is_last) {
    finding.reason =
        "its softmax is over a dimension that may not be that of keys";
  } else if (fills_beside_others(found)) {
    finding.reason = "a mask that leaves its scores finite is not the only one";
  } else if (!above.empty() || !below.empty()) {
    finding.reason = above.empty() ? below : above;
  } else {
    finding.attention = found;
  }
  return finding;
}

} // namespace torch_attention::graphs
