#include <jit/find_attention.h>

#include <jit/changes.h>
#include <jit/look_alike.h>
#include <jit/values.h>

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_set>
#include <utility>

namespace torch_attention::graphs {

namespace {

using torch::jit::Node;
using torch::jit::Value;

/// The highest fill value that is taken for a mask. A higher score may not be
/// low enough to hide a key, whatever the other scores are.
constexpr double kHighestFill = -200;

/// The range of softcaps that our operator accepts.
constexpr double kLeastSoftcap = 1e-6;
constexpr double kLargestSoftcap = 1e6;

Factor number_factor(double number) {
  Factor factor;
  factor.number = number;
  return factor;
}

/// Returns the product of the factors whose numbers are known.
double known_product(const std::vector<Factor>& factors) {
  double product = 1;
  for (const auto& factor : factors) {
    product *= factor.number;
  }
  return product;
}

bool varies(const std::vector<Factor>& factors) {
  return std::any_of(factors.begin(), factors.end(), [](const Factor& factor) {
    return factor.value != nullptr;
  });
}

/// Returns whether a value is ignored when the dtype of a tensor with
/// dimensions is promoted: a number, or a constant of no dimensions.
bool is_scalar(const Value* value) {
  if (!is_tensor(value)) {
    return true;
  }
  const auto constant = torch::jit::toIValue(value);
  return constant && constant->toTensor().defined() &&
      constant->toTensor().dim() == 0;
}

/// Returns the input whose dtype is the dtype of the output, or null.
Value* tensor_of_same_dtype(Node* node) {
  if (is_view(node) ||
      is(node,
         {"aten::contiguous",
          "aten::clone",
          "aten::alias",
          "aten::masked_fill",
          "aten::tanh"})) {
    return node->input(0);
  }
  const bool chooses = is(node, {"aten::where"}) && node->inputs().size() == 3;
  if (!chooses && !is(node, {"aten::add", "aten::mul", "aten::div"})) {
    return nullptr;
  }
  auto* first = node->input(chooses ? 1 : 0);
  auto* second = node->input(chooses ? 2 : 1);
  return is_scalar(second) ? first : is_scalar(first) ? second : nullptr;
}

/// Returns an int or a tensor that has the dtype of the node's output; null if
/// none is known.
Value* dtype_of(Node* node) {
  if (is(node, {"aten::matmul", "aten::bmm", "aten::mm"})) {
    return node->input(0);
  }
  if (is(node, {"aten::einsum"})) {
    return node->input(1)->node()->inputs().empty()
        ? nullptr
        : node->input(1)->node()->input(0);
  }
  const bool has_second = is(node, {"aten::baddbmm", "aten::type_as"}) ||
      (is(node, {"aten::to"}) && node->schema().overload_name() == "dtype");
  return has_second ? node->input(1) : tensor_of_same_dtype(node);
}

/// Records the dtype that `node` casts to. Returns why the cast cannot be
/// followed, or nothing. Whether it changes numbers is checked when the graph
/// runs.
std::string take_cast(Node* node, AttentionNodes& found) {
  if (is(node, {"aten::contiguous", "aten::clone", "aten::alias"})) {
    return {};
  }
  Value* dtype = nullptr;
  if (is(node, {"aten::softmax"})) {
    dtype = node->input(2);
  } else if (is(node, {"aten::type_as"})) {
    dtype = node->input(1);
  } else {
    const auto& overload = node->schema().overload_name();
    if (overload != "dtype" && overload != "prim_dtype" &&
        overload != "other") {
      return "its scores or weights may go to another device";
    }
    dtype = node->input(1);
  }
  if (is(dtype->node(), {"prim::dtype"})) {
    dtype = dtype->node()->input();
  }
  const auto constant = torch::jit::toIValue(dtype);
  if (constant && constant->isNone()) {
    return {};
  }
  if (constant && constant->isInt()) {
    const auto type = static_cast<c10::ScalarType>(constant->toInt());
    if (!c10::isFloatingType(type)) {
      return std::string("its scores or weights are cast to ") +
          c10::toString(type);
    }
  } else if (
      !constant && !is_tensor(dtype) &&
      dtype->type()->kind() != c10::TypeKind::IntType) {
    return "its scores or weights are cast to what may be no dtype";
  }
  found.casts.push_back(dtype);
  return {};
}

/// Records a cast of the weights, by the softmax or after it.
std::string take_weights_cast(Node* node, AttentionNodes& found) {
  const auto before = found.casts.size();
  const auto reason = take_cast(node, found);
  if (found.casts.size() > before) {
    found.weights_cast = found.casts.back();
  }
  return reason;
}

/// Walks up from a softmax to the product of queries and keys.
class Upwards {
 public:
  Upwards(const torch::jit::Module& module, AttentionNodes& found)
      : module_(module), found_(found), in_view_(found.view_back != nullptr) {}

  /// Returns why the walk fails, or nothing.
  std::string walk(Value* scores) {
    while (true) {
      auto* node = scores->node();
      if (is_read_elsewhere(scores)) {
        return "its scores are read elsewhere as well";
      }
      found_.nodes.push_back(node);
      take_dtype(scores);
      if (is_product(node) && in_view_) {
        return "a view of its scores or weights is not undone";
      }
      if (is(node, {"aten::matmul", "aten::bmm", "aten::mm"})) {
        return take_product(node, node->input(0), node->input(1));
      }
      if (is(node, {"aten::einsum"})) {
        return found_.view != nullptr ? "the scores of its einsum are viewed"
                                      : take_einsum(node);
      }
      if (is(node, {"aten::baddbmm"})) {
        return take_added_product(node);
      }
      Value* next = nullptr;
      const auto reason = step(node, next);
      if (!reason.empty()) {
        return reason;
      }
      scores = next;
    }
  }

 private:
  /// Returns whether a use of scores is a later cast on the path to the values,
  /// or reads their dtype for such casts only.
  bool is_later_cast(const torch::jit::Use& use) const {
    const auto& nodes = found_.nodes;
    const auto is_found = [&](const torch::jit::Use& one) {
      return std::find(nodes.begin(), nodes.end(), one.user) != nodes.end();
    };
    if (is(use.user, {"prim::dtype"})) {
      const auto& readers = use.user->output()->uses();
      return std::all_of(readers.begin(), readers.end(), is_found);
    }
    return is(use.user, {"aten::type_as"}) && use.offset == 1 && is_found(use);
  }

  /// Returns whether scores have a reader outside the path to the values. Later
  /// casts on this path may read their dtype.
  bool is_read_elsewhere(Value* scores) {
    const bool has_dtype = dtype_of(scores->node()) != nullptr;
    int readers = 0;
    for (const auto& use : scores->uses()) {
      if (!has_dtype || !is_later_cast(use)) {
        ++readers;
      } else if (is(use.user, {"prim::dtype"})) {
        found_.nodes.push_back(use.user);
      }
    }
    return readers > 1;
  }

  /// Replaces casts to the dtype of these scores by casts to the dtype of the
  /// value that they have it from.
  void take_dtype(Value* scores) {
    if (auto* dtype = dtype_of(scores->node())) {
      std::replace(found_.casts.begin(), found_.casts.end(), scores, dtype);
      if (found_.weights_cast == scores) {
        found_.weights_cast = dtype;
      }
    }
  }

  std::string take_product(Node* node, Value* query, Value* key) {
    found_.query = {query, {}};
    found_.transposed_key = {key, {}};
    found_.first = node;
    return {};
  }

  std::string take_einsum(Node* node) {
    const auto product = scores_of_einsum(node);
    if (!product) {
      return "its scores come from an einsum of another kind";
    }
    found_.query = product->left;
    found_.transposed_key = product->right;
    found_.first = node;
    return {};
  }

  /// Records beta * bias + alpha * (q k).
  std::string take_added_product(Node* node) {
    const auto beta = number_of(node->input(3));
    const auto alpha = number_of(node->input(4));
    if (!beta || !alpha) {
      return "its product of queries and keys has factors that vary";
    }
    if (*beta != 0) {
      const auto reason = take_bias(node->input(0), *beta);
      if (!reason.empty()) {
        return reason;
      }
    }
    const auto reason = take_factor(number_factor(*alpha));
    return reason.empty() ? take_product(node, node->input(1), node->input(2))
                          : reason;
  }

  /// A mask is scaled by the factors that come after it in the graph, too.
  void add_mask(Value* value, Mask::Kind kind, const Factor& factor) {
    Mask mask;
    mask.value = value;
    mask.kind = kind;
    mask.in_view = in_view_;
    mask.factors = found_.factors;
    mask.factors.push_back(factor);
    found_.masks.push_back(mask);
  }

  std::string take_bias(Value* value, double factor) {
    if (found_.softcap) {
      return "what is added to its scores is capped with them";
    }
    if (!is_tensor(value)) {
      return "a number is added to its scores";
    }
    add_mask(value, Mask::Kind::kBias, number_factor(factor));
    return {};
  }

  /// Records a view of the scores. Walking up, the view back comes first.
  std::string take_view(Value* sizes) {
    if (is(found_.last, {"aten::einsum"})) {
      return "the scores of its einsum are viewed";
    }
    auto*& view = in_view_ ? found_.view : found_.view_back;
    if (view != nullptr) {
      return "its scores are viewed more than once";
    }
    view = sizes;
    in_view_ = !in_view_;
    return {};
  }

  std::string take_factor(const Factor& factor) {
    if (factor.value == nullptr &&
        (!(factor.number > 0) || !std::isfinite(factor.number))) {
      return "its scores are multiplied by " + std::to_string(factor.number);
    }
    found_.factors.push_back(factor);
    return {};
  }

  /// Goes up by one operator, to `next`. Returns why it cannot, or nothing.
  std::string step(Node* node, Value*& next) {
    if (is(node,
           {"aten::to",
            "aten::type_as",
            "aten::contiguous",
            "aten::clone",
            "aten::alias"})) {
      next = node->input(0);
      return take_cast(node, found_);
    }
    if (is_view(node)) {
      next = node->input(0);
      return take_view(node->input(1));
    }
    if (is(node, {"aten::div", "aten::mul"})) {
      return step_factor(node, next);
    }
    if (is(node, {"aten::masked_fill"})) {
      next = node->input(0);
      return take_fill(node->input(1), Mask::Kind::kHides, node->input(2));
    }
    if (is(node, {"aten::where"}) && node->inputs().size() == 3) {
      const bool fills_last = number_of(node->input(2)).has_value();
      next = node->input(fills_last ? 1 : 2);
      return take_fill(
          node->input(0),
          fills_last ? Mask::Kind::kAttends : Mask::Kind::kHides,
          node->input(fills_last ? 2 : 1));
    }
    if (is(node, {"aten::add"})) {
      return step_bias(node, next);
    }
    if (is(node, {"aten::tanh"})) {
      next = node->input(0);
      return take_cap();
    }
    const std::string name = node->kind().toQualString();
    return name.back() == '_' ? "its scores are changed in place by " + name
                              : "its scores come from " + name;
  }

  std::string step_factor(Node* node, Value*& next) {
    const bool divides = is(node, {"aten::div"});
    if (divides && node->inputs().size() != 2) {
      return "its scores are rounded";
    }
    next = node->input(0);
    auto* other = node->input(1);
    if (!divides && is_number(module_, next)) {
      std::swap(next, other);
    }
    if (const auto number = number_of(other)) {
      return take_factor(number_factor(divides ? 1 / *number : *number));
    }
    if (!is_number(module_, other)) {
      return "its scores are multiplied by a tensor";
    }
    Factor factor;
    factor.value = other;
    factor.divides = divides;
    return take_factor(factor);
  }

  /// Records softcap tanh(...): the factors found so far are the softcap.
  std::string take_cap() {
    if (found_.softcap) {
      return "its scores are capped twice";
    }
    const auto cap = known_product(found_.factors);
    if (varies(found_.factors) || cap < kLeastSoftcap ||
        cap > kLargestSoftcap) {
      return "its scores are capped at what may be out of range";
    }
    found_.softcap = cap;
    found_.factors.clear();
    return {};
  }

  std::string take_fill(Value* mask, Mask::Kind kind, Value* with) {
    if (found_.softcap) {
      return "its scores are masked before they are capped";
    }
    const auto fill = number_of(with);
    if (!fill && is_number(module_, with)) {
      Factor factor;
      factor.value = with;
      add_mask(mask, kind, factor);
      return {};
    }
    if (!fill) {
      return "its masked scores become a tensor, which may not hide them";
    }
    const bool is_low = varies(found_.factors)
        ? *fill < 0
        : *fill * known_product(found_.factors) <= kHighestFill;
    if (!is_low) {
      return "its masked scores become " + std::to_string(*fill) +
          ", which may not hide them";
    }
    add_mask(mask, kind, number_factor(*fill));
    return {};
  }

  std::string step_bias(Node* node, Value*& next) {
    if (node->inputs().size() == 3 && number_of(node->input(2)) != 1.0) {
      return "what is added to its scores has a factor";
    }
    for (const size_t i : {0, 1}) {
      if (leads_to_product(node->input(i))) {
        next = node->input(i);
        return take_bias(node->input(1 - i), 1.0);
      }
    }
    return "its scores are a sum";
  }

  const torch::jit::Module& module_;
  AttentionNodes& found_;
  /// whether the walk is between the two views
  bool in_view_;
};

std::string take_output_of_einsum(
    Node* node,
    const Value* weights,
    AttentionNodes& found) {
  if (found.view_back != nullptr) {
    return "the weights of its einsum are viewed";
  }
  const auto product = output_of_einsum(node, weights);
  if (!product) {
    return "its weights go to an einsum of another kind";
  }
  found.value = product->right;
  found.result = product->result;
  found.last = node;
  return {};
}

/// Walks down from a softmax to the product of weights and values. Returns why
/// the walk fails, or nothing.
std::string walk_down(Value* weights, AttentionNodes& found) {
  while (true) {
    if (weights->uses().size() != 1) {
      return weights->uses().empty() ? "nothing reads its weights"
                                     : "its weights are read elsewhere as well";
    }
    const auto& use = weights->uses().front();
    auto* node = use.user;
    found.nodes.push_back(node);
    if (is(node, {"aten::matmul", "aten::bmm", "aten::mm"})) {
      if (use.offset != 0) {
        return "its weights are the second factor";
      }
      found.value = {node->input(1), {}};
      found.last = node;
      return {};
    }
    if (is_view(node) && use.offset == 0) {
      if (found.view_back != nullptr) {
        return "its weights are viewed more than once";
      }
      found.view_back = node->input(1);
      weights = node->output();
      continue;
    }
    if (is(node, {"prim::ListConstruct"}) &&
        node->output()->uses().size() == 1 &&
        is(node->output()->uses().front().user, {"aten::einsum"})) {
      auto* einsum = node->output()->uses().front().user;
      found.nodes.push_back(einsum);
      return take_output_of_einsum(einsum, weights, found);
    }
    if (is(node, {"aten::dropout"}) && use.offset == 0) {
      if (found.dropout != nullptr) {
        return "its weights are dropped twice";
      }
      found.dropout = node->input(1);
      found.training = node->input(2);
    } else if (
        is(node,
           {"aten::to", "aten::type_as", "aten::contiguous", "aten::clone"}) &&
        use.offset == 0) {
      const auto reason = take_weights_cast(node, found);
      if (!reason.empty()) {
        return reason;
      }
    } else {
      return "its weights go to " + std::string(node->kind().toQualString());
    }
    weights = node->output();
  }
}

/// Sorts the nodes by the order of execution. Returns why our operator cannot
/// replace all of them, or nothing.
std::string put_in_order(AttentionNodes& found) {
  const auto* block = found.last->owningBlock();
  const std::unordered_set<Node*> nodes(found.nodes.begin(), found.nodes.end());
  for (auto* node : nodes) {
    if (node->owningBlock() != block) {
      return "its operators are in different branches or loops";
    }
  }
  found.nodes.clear();
  for (auto* node = found.first; node != found.last; node = node->next()) {
    if (switches_modes(node)) {
      return "gradients or automatic casts are switched between its operators";
    }
    if (nodes.count(node) > 0) {
      found.nodes.push_back(node);
    }
  }
  found.nodes.push_back(found.last);
  return {};
}

/// Returns why the softmax may not be over the keys, or nothing. If the number
/// of dimensions is not known, its dimension is checked when the graph runs.
std::string take_dimension(AttentionNodes& found) {
  auto* given = found.softmax->input(1);
  const auto constant = torch::jit::toIValue(given);
  if (!constant || !constant->isInt()) {
    return "its softmax is over a dimension that varies";
  }
  const auto dim = constant->toInt();
  if (dim == -1) {
    return {};
  }
  const auto type = found.softmax->output()->type()->cast<c10::TensorType>();
  if (dim < 1 ||
      (type && type->dim() && dim != static_cast<int64_t>(*type->dim()) - 1)) {
    return "its softmax is over dimension " + std::to_string(dim) +
        ", which is not that of keys";
  }
  if (found.view == nullptr) {
    found.dim = given;
    return {};
  }
  const auto* scores = found.softmax->input(0)->node();
  if (is(scores, {"aten::alias"})) {
    scores = scores->input()->node();
  }
  return rank_of_view(scores) == dim + 1
      ? ""
      : "its softmax is over a dimension that may not be that of keys";
}

} // namespace

Finding find_attention(const torch::jit::Module& module, Node* softmax) {
  AttentionNodes found;
  found.softmax = softmax;
  found.nodes.push_back(softmax);
  std::string reason;
  for (const auto& step :
       {std::function<std::string()>(
            [&] { return take_weights_cast(softmax, found); }),
        std::function<std::string()>(
            [&] { return walk_down(softmax->output(), found); }),
        std::function<std::string()>(
            [&] { return Upwards(module, found).walk(softmax->input(0)); }),
        std::function<std::string()>([&] { return take_dimension(found); }),
        std::function<std::string()>([&] { return put_in_order(found); })}) {
    if (reason.empty()) {
      reason = step();
    }
  }
  Finding finding;
  if (reason.empty()) {
    finding.attention = std::move(found);
  } else if (looks_like_attention(softmax)) {
    finding.reason = reason;
  }
  return finding;
}

} // namespace torch_attention::graphs
