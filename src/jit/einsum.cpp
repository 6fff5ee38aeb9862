#include <jit/einsum.h>

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>

namespace torch_attention::graphs {

namespace {

using torch::jit::Node;
using torch::jit::Value;

/// A tensor and the letters of its dimensions.
struct Operand {
  Value* value = nullptr;
  std::string letters;
};

struct Equation {
  Operand a;
  Operand b;
  std::string result;
};

bool has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

bool has_repeated(std::string letters) {
  std::sort(letters.begin(), letters.end());
  return std::adjacent_find(letters.begin(), letters.end()) != letters.end();
}

/// Returns the equation if it has two operands and an explicit result, and
/// takes no diagonal.
std::optional<Equation> read_equation(const Node* node) {
  const auto text = torch::jit::toIValue(node->input(0));
  const auto* list = node->input(1)->node();
  if (!text || !text->isString() ||
      list->kind() != torch::jit::prim::ListConstruct ||
      list->inputs().size() != 2) {
    return std::nullopt;
  }
  auto letters = text->toStringRef();
  letters.erase(
      std::remove(letters.begin(), letters.end(), ' '), letters.end());
  const auto comma = letters.find(',');
  const auto arrow = letters.find("->");
  if (comma == std::string::npos || arrow == std::string::npos ||
      comma > arrow || has(letters, '.')) {
    return std::nullopt;
  }
  Equation equation{
      {list->input(0), letters.substr(0, comma)},
      {list->input(1), letters.substr(comma + 1, arrow - comma - 1)},
      letters.substr(arrow + 2)};
  for (const auto& part :
       {equation.a.letters, equation.b.letters, equation.result}) {
    if (part.size() < 2 || has_repeated(part)) {
      return std::nullopt;
    }
  }
  return equation;
}

/// Returns the letters of `of` that are not in `others`.
std::string without(const std::string& of, const std::string& others) {
  std::string rest;
  std::copy_if(
      of.begin(), of.end(), std::back_inserter(rest), [&](char letter) {
        return !has(others, letter);
      });
  return rest;
}

/// Returns the position of each letter of `wanted` in `letters`, -1 if absent.
/// Empty if both are equal.
std::vector<int64_t> order_of(
    const std::string& wanted,
    const std::string& letters) {
  std::vector<int64_t> order;
  if (wanted != letters) {
    for (const char letter : wanted) {
      const auto at = letters.find(letter);
      order.push_back(at == std::string::npos ? -1 : static_cast<int64_t>(at));
    }
  }
  return order;
}

} // namespace

std::optional<EinsumProduct> scores_of_einsum(const Node* node) {
  auto equation = read_equation(node);
  if (!equation) {
    return std::nullopt;
  }
  const auto& scores = equation->result;
  const auto rank = scores.size();
  const char t = scores[rank - 2];
  const char s = scores[rank - 1];
  auto query = equation->a;
  auto key = equation->b;
  if (!has(query.letters, t)) {
    std::swap(query, key);
  }
  const auto summed = without(query.letters, scores);
  if (!has(query.letters, t) || has(query.letters, s) || !has(key.letters, s) ||
      has(key.letters, t) || summed.size() != 1 ||
      without(key.letters, scores) != summed) {
    return std::nullopt;
  }
  const auto batch = scores.substr(0, rank - 2);
  if (without(batch, query.letters + key.letters) != "") {
    return std::nullopt;
  }
  EinsumProduct product;
  product.left = {query.value, order_of(batch + t + summed, query.letters)};
  product.right = {key.value, order_of(batch + summed + s, key.letters)};
  product.rank = static_cast<int64_t>(rank);
  return product;
}

std::optional<EinsumProduct> output_of_einsum(
    const Node* node,
    const Value* weights) {
  auto equation = read_equation(node);
  if (!equation ||
      (equation->a.value == weights) == (equation->b.value == weights)) {
    return std::nullopt;
  }
  const bool is_first = equation->a.value == weights;
  const auto& left = is_first ? equation->a : equation->b;
  const auto& right = is_first ? equation->b : equation->a;
  const auto rank = left.letters.size();
  const auto batch = left.letters.substr(0, rank - 2);
  const char t = left.letters[rank - 2];
  const char s = left.letters[rank - 1];
  const auto width = without(right.letters, left.letters);
  if (!has(right.letters, s) || has(right.letters, t) ||
      has(equation->result, s) || width.size() != 1) {
    return std::nullopt;
  }
  const auto product_letters = batch + t + width;
  if (without(product_letters, equation->result) != "" ||
      equation->result.size() != product_letters.size()) {
    return std::nullopt;
  }
  EinsumProduct product;
  product.left = {left.value, {}};
  product.right = {right.value, order_of(batch + s + width, right.letters)};
  product.result = order_of(equation->result, product_letters);
  product.rank = static_cast<int64_t>(rank);
  return product;
}

} // namespace torch_attention::graphs
