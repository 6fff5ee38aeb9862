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

/// The arguments of our operator.
constexpr double kLeastSoftcap = 1e-6;
constexpr double kLargestSoftcap = 1e6;

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
/// attributes. A size is taken to have room for what it is divided by, as
/// that of a token for its heads.
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
           "aten::floordiv",
           "aten::floor_divide",
           "aten::to",
           "aten::tensor",
           "aten::__getitem__",
           "prim::ListUnpack"})) {
    return false;
  }
  return is_positive_number(module, node->input(0)) &&
      (!is(node,
           {"aten::mul",
            "aten::div",
            "aten::floordiv",
            "aten::floor_divide"}) ||
       is_positive_number(module, node->input(1)));
}

/// Goes up to where a tensor is laid out, past what only copies it.
const Value* laid_out(const Value* value) {
  while (
      is(value->node(),
         {"aten::to", "aten::type_as", "aten::contiguous", "aten::clone"})) {
    value = value->node()->input(0);
  }
  return value;
}

/// Returns whether a tensor is known to have at least two dimensions.
bool has_matrices(const Value* value) {
  const auto type = value->type()->cast<c10::TensorType>();
  if (type && type->dim()) {
    return *type->dim() >= 2;
  }
  const auto* node = laid_out(value)->node();
  if (is(node, {"aten::permute", "aten::view", "aten::reshape"})) {
    const auto* sizes = node->input(1);
    const auto constant = torch::jit::toIValue(sizes);
    return constant && constant->isIntList()
        ? constant->toIntVector().size() >= 2
        : sizes->node()->kind() == torch::jit::prim::ListConstruct &&
            sizes->node()->inputs().size() >= 2;
  }
  return is(
      node,
      {"aten::transpose",
       "aten::t",
       "aten::mT",
       "aten::numpy_T",
       "aten::swapaxes",
       "aten::swapdims"});
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
      if (is(node, {"aten::einsum"})) {
        return take_einsum(node);
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

  /// True if it came to a product.
  bool has_product() const {
    return has_product_;
  }

 private:
  std::string take_product(Node* node, Value* query, Value* key) {
    const bool of_three = !is(node, {"aten::matmul"});
    if (!of_three && !has_matrices(key)) {
      return "the second factor of its scores may have one dimension";
    }
    has_product_ = true;
    found_.query = {query, {}};
    found_.transposed_key = {key, {}};
    found_.first = node;
    if (of_three) {
      found_.rank = 3;
    }
    return {};
  }

  std::string take_einsum(Node* node) {
    const auto product = scores_of_einsum(node);
    if (!product) {
      return "its scores come from an einsum of another kind";
    }
    has_product_ = true;
    found_.query = product->left;
    found_.transposed_key = product->right;
    found_.rank = product->rank;
    found_.first = node;
    return {};
  }

  /// beta * bias + alpha * (q k)
  std::string take_added_product(Node* node) {
    const auto beta = number_of(node->input(3));
    const auto alpha = number_of(node->input(4));
    has_product_ = true;
    if (!beta || !alpha) {
      return "its product of queries and keys has factors that vary";
    }
    if (*beta != 0) {
      const auto reason = add_numbers(node->input(0), *beta);
      if (!reason.empty()) {
        return reason;
      }
    }
    const auto reason = add_factor(*alpha, false);
    return reason.empty() ? take_product(node, node->input(1), node->input(2))
                          : reason;
  }

  void add_mask(
      Value* value,
      Mask::Kind kind,
      double fill = -std::numeric_limits<double>::infinity(),
      double factor = 1.0) {
    Mask mask;
    mask.causal = is_causal_mask(
        module_,
        value,
        kind == Mask::Kind::kHides ? MaskMeaning::kHides
                                   : MaskMeaning::kOfLibTorch);
    mask.value = value;
    mask.kind = kind;
    mask.fill = fill;
    // The factors of later operations apply to the fill as well.
    mask.factor = constant_ * factor;
    found_.masks.push_back(mask);
  }

  /// Takes in a value that is added to the scores. Returns why it cannot be
  /// added, or nothing.
  std::string add_numbers(Value* value, double factor) {
    if (varies_) {
      return "what is added to its scores is divided by what varies";
    }
    if (found_.softcap) {
      return "what is added to its scores is capped with them";
    }
    add_mask(
        value,
        Mask::Kind::kAdded,
        -std::numeric_limits<double>::infinity(),
        factor);
    return {};
  }

  std::string add_factor(double number, bool divides) {
    if (!(number > 0) || !std::isfinite(number)) {
      return "its scores are multiplied by " + std::to_string(number);
    }
    Factor factor;
    factor.number = number;
    factor.divides = divides;
    constant_ *= number;
    found_.factors.push_back(factor);
    return {};
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
    if (is(node, {"aten::tanh", "aten::tanh_"})) {
      return step_cap(node, next);
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
    if (!divides &&
        (number_of(scores) || is_positive_number(module_, scores))) {
      std::swap(scores, other);
    }
    if (const auto number = number_of(other)) {
      const auto reason = add_factor(divides ? 1 / *number : *number, divides);
      if (!reason.empty()) {
        return reason;
      }
    } else if (is_positive_number(module_, other)) {
      Factor factor;
      factor.divides = divides;
      factor.value = other;
      found_.factors.push_back(factor);
      varies_ = true;
    } else {
      return "its scores are multiplied by a tensor";
    }
    next = scores;
    return {};
  }

  /// softcap tanh(...): what was found until here multiplies it.
  std::string step_cap(Node* node, Value*& next) {
    if (found_.softcap) {
      return "its scores are capped twice";
    }
    if (varies_ || constant_ < kLeastSoftcap || constant_ > kLargestSoftcap) {
      return "its scores are capped at what may be out of range";
    }
    found_.softcap = constant_;
    found_.factors.clear();
    next = node->input(0);
    return {};
  }

  std::string step_fill(
      Value* mask,
      Mask::Kind kind,
      Value* with,
      Value* scores,
      Value*& next) {
    if (found_.softcap) {
      return "its scores are masked before they are capped";
    }
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
    // The scores are what leads to a product.
    for (const size_t i : {0, 1}) {
      if (leads_to_product(node->input(i))) {
        const auto reason = add_numbers(node->input(1 - i), 1.0);
        next = reason.empty() ? node->input(i) : nullptr;
        return reason;
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
  /// True if there were others.
  bool varies_ = false;
  bool has_product_ = false;
};

/// The product of weights and values by an einsum.
std::string take_einsum(
    Node* node,
    const Value* weights,
    AttentionNodes& found,
    bool& has_product) {
  has_product = true;
  const auto product = output_of_einsum(node, weights);
  if (!product) {
    return "its weights go to an einsum of another kind";
  }
  found.value = product->right;
  found.result = product->result;
  found.rank = product->rank;
  found.last = node;
  return {};
}

/// Goes down from a softmax to the product of weights and values. Returns why
/// there is no way, or nothing.
std::string walk_down(
    Value* weights,
    AttentionNodes& found,
    bool& has_product) {
  while (true) {
    if (weights->uses().size() != 1) {
      for (const auto& use : weights->uses()) {
        has_product = has_product ||
            is(use.user, {"aten::matmul", "aten::bmm", "prim::ListConstruct"});
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
      found.value = {node->input(1), {}};
      found.last = node;
      return {};
    }
    if (is(node, {"prim::ListConstruct"}) &&
        node->output()->uses().size() == 1 &&
        is(node->output()->uses().front().user, {"aten::einsum"})) {
      return take_einsum(
          node->output()->uses().front().user, weights, found, has_product);
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
        dim->toInt() == static_cast<int64_t>(*type->dim()) - 1) ||
       (found.rank && dim->toInt() == *found.rank - 1));
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
