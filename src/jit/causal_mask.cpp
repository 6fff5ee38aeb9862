#include <jit/causal_mask.h>

#include <ATen/ops/arange.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch_attention::graphs {

namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

/// Scores so low weigh nothing beside any other.
constexpr double kLowest = -1e4;

/// A program that computes a value from sizes, cut out of a graph.
class Excerpt {
 public:
  explicit Excerpt(const torch::jit::Module& module) : module_(module) {}

  /// Copies what `value` is computed from. Returns null if that is more than
  /// constants, buffers and sizes.
  Value* copy(Value* value) {
    const auto known = copies_.find(value);
    if (known != copies_.end()) {
      return known->second;
    }
    auto* copied = copy_anew(value);
    copies_.emplace(value, copied);
    return copied;
  }

  size_t num_sizes() const {
    return sizes_.size();
  }

  /// The sizes of the buffers that it reads.
  const std::vector<int64_t>& buffer_sizes() const {
    return buffer_sizes_;
  }

  /// Returns the value for these sizes; undefined if it cannot be computed.
  torch::Tensor run(Value* result, const std::vector<int64_t>& sizes) {
    if (code_ == nullptr) {
      graph_->registerOutput(result);
      code_ = std::make_unique<torch::jit::Code>(graph_, "mask");
    }
    torch::jit::Stack stack(sizes.begin(), sizes.end());
    try {
      const torch::NoGradGuard no_grad;
      torch::jit::InterpreterState(*code_).run(stack);
    } catch (const std::exception&) {
      return {}; // Sizes that do not fit each other.
    }
    return stack.back().isTensor() ? stack.back().toTensor() : torch::Tensor();
  }

 private:
  Value* copy_anew(Value* value) {
    auto* node = value->node();
    if (value->type()->isSubtypeOf(*c10::TensorType::get())) {
      const auto tensor = tensor_behind(module_, value);
      if (tensor.defined()) {
        // Buffers are what models keep masks in; parameters change.
        if (tensor.requires_grad() || !tensor.device().is_cpu()) {
          return nullptr;
        }
        const auto of_buffer = tensor.sizes();
        buffer_sizes_.insert(
            buffer_sizes_.end(), of_buffer.begin(), of_buffer.end());
        return graph_->insertConstant(tensor.detach());
      }
    }
    if (node->kind() == torch::jit::prim::Constant) {
      return graph_->insertNode(graph_->createClone(node, {}))->output();
    }
    if (node->kind() == torch::jit::prim::Param ||
        node->kind() == torch::jit::prim::GetAttr || !node->blocks().empty() ||
        node->isNondeterministic()) {
      return nullptr;
    }
    if (node->kind() == torch::jit::aten::size && node->inputs().size() == 2 &&
        copy(node->input(0)) == nullptr) {
      return size_of(node->input(0), torch::jit::toIValue(node->input(1)));
    }
    if (node->kind() == torch::jit::aten::__getitem__ &&
        node->input(0)->node()->kind() == torch::jit::aten::size &&
        copy(node->input(0)) == nullptr) {
      return size_of(
          node->input(0)->node()->input(0),
          torch::jit::toIValue(node->input(1)));
    }
    if (node->kind() == torch::jit::prim::ListUnpack &&
        node->input()->node()->kind() == torch::jit::aten::size &&
        copy(node->input()) == nullptr) {
      return size_of(
          node->input()->node()->input(0),
          static_cast<int64_t>(value->offset()));
    }
    for (auto* input : node->inputs()) {
      if (copy(input) == nullptr) {
        return nullptr;
      }
    }
    const auto* schema = node->maybeSchema();
    auto* cloned = schema != nullptr && schema->is_mutable()
        ? copy_in_place(node)
        : graph_->createClone(
              node, [&](Value* input) { return copies_.at(input); });
    if (cloned == nullptr) {
      return nullptr;
    }
    graph_->insertNode(cloned);
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      if (node->outputs()[i] == value) {
        return cloned->outputs()[i];
      }
    }
    return nullptr;
  }

  /// An operator in place, such as masked_fill_, as the one that returns a new
  /// tensor. Null if something else reads the tensor that it changes.
  Node* copy_in_place(Node* node) {
    auto name = std::string(node->kind().toQualString());
    if (name.back() != '_' || node->outputs().size() != 1 ||
        node->input(0)->uses().size() != 1) {
      return nullptr;
    }
    name.pop_back();
    std::vector<Value*> inputs;
    for (auto* input : node->inputs()) {
      inputs.push_back(copies_.at(input));
    }
    auto* made = graph_->create(c10::Symbol::fromQualString(name), inputs);
    made->output()->setType(c10::TensorType::get());
    return made->maybeSchema() == nullptr ? nullptr : made;
  }

  /// An input for the size of a tensor that is computed elsewhere.
  Value* size_of(Value* tensor, const std::optional<c10::IValue>& dim) {
    if (!dim) {
      return nullptr;
    }
    auto& size = sizes_[{tensor, dim->toInt()}];
    if (size == nullptr) {
      size = graph_->addInput()->setType(c10::IntType::get());
    }
    return size;
  }

  const torch::jit::Module& module_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  std::unordered_map<Value*, Value*> copies_;
  std::map<std::pair<Value*, int64_t>, Value*> sizes_;
  std::vector<int64_t> buffer_sizes_;
  std::unique_ptr<torch::jit::Code> code_;
};

/// Returns true where `mask` hides; undefined if it does other things, too.
torch::Tensor hidden_by(const torch::Tensor& mask, MaskMeaning meaning) {
  if (mask.scalar_type() == torch::kBool) {
    return meaning == MaskMeaning::kHides ? mask : mask.logical_not();
  }
  if (meaning == MaskMeaning::kHides || !mask.is_floating_point()) {
    return {};
  }
  const auto hidden = mask.le(kLowest);
  return mask.eq(0).logical_or(hidden).all().item<bool>() ? hidden
                                                          : torch::Tensor();
}

/// Returns whether `hidden` (..., T, S) hides what comes later, nothing else.
bool is_causal(const torch::Tensor& hidden) {
  const auto T = hidden.size(-2);
  const auto S = hidden.size(-1);
  const auto later = at::arange(S).gt(at::arange(T).unsqueeze(1) + (S - T));
  return hidden.eq(later).all().item<bool>();
}

/// All choices of `n` of the numbers in `values`.
std::vector<std::vector<int64_t>> choices(
    size_t n,
    const std::vector<int64_t>& values) {
  std::vector<std::vector<int64_t>> all{{}};
  for (size_t i = 0; i < n; ++i) {
    std::vector<std::vector<int64_t>> longer;
    for (const auto& some : all) {
      for (const auto value : values) {
        longer.push_back(some);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

} // namespace

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

torch::Tensor tensor_behind(
    const torch::jit::Module& module,
    const Value* value) {
  const auto found = value->node()->kind() == torch::jit::prim::Constant
      ? torch::jit::toIValue(value)
      : attribute_behind(module, value);
  return found && found->isTensor() ? found->toTensor() : torch::Tensor();
}

bool is_causal_mask(
    const torch::jit::Module& module,
    Value* mask,
    MaskMeaning meaning) {
  // As many sizes of as many tensors are tried.
  constexpr size_t kMostSizes = 4;
  constexpr int64_t kMostTokens = 1 << 13;
  Excerpt excerpt(module);
  auto* copied = excerpt.copy(mask);
  if (copied == nullptr || excerpt.num_sizes() > kMostSizes) {
    return false;
  }
  // A buffer is checked to its last number.
  std::vector<int64_t> longest;
  for (const auto size : excerpt.buffer_sizes()) {
    longest.push_back(std::min(size, kMostTokens));
  }
  auto tries = choices(excerpt.num_sizes(), {1, 2, 3, 5});
  const auto most = longest.empty()
      ? int64_t{0}
      : *std::max_element(longest.begin(), longest.end());
  if (most > 0) {
    const auto last = choices(excerpt.num_sizes(), {2, most});
    tries.insert(tries.end(), last.begin(), last.end());
  }
  bool has_rows = false;
  for (const auto& sizes : tries) {
    const auto found = excerpt.run(copied, sizes);
    if (!found.defined() || found.dim() < 2 || found.numel() == 0 ||
        found.size(-2) > found.size(-1)) {
      continue;
    }
    const auto hidden = hidden_by(found, meaning);
    if (!hidden.defined() || !is_causal(hidden)) {
      return false;
    }
    has_rows = has_rows || found.size(-2) > 1;
  }
  return has_rows;
}

} // namespace torch_attention::graphs
