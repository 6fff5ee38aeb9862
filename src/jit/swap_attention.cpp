#include <torch_attention/jit/swap_attention.h>

#include <check.h>
#include <escape.h>
#include <jit/branches.h>
#include <jit/changes.h>
#include <jit/compare_models.h>
#include <jit/find_attention.h>
#include <jit/fused_layers.h>
#include <jit/replace_attention.h>
#include <jit/sizes.h>
#include <jit/values.h>
#include <operators/library.h>

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/remove_mutation.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch_attention {

namespace {

using graphs::AttentionNodes;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

/// Returns whether a node chooses between our operator and the original ones.
bool is_swapped(const Node* node) {
  return graphs::is(node, {"prim::If"}) &&
      graphs::is(
             node->input(0)->node(),
             {operators::takes_name(), operators::takes_sdpa_name()});
}

/// Returns the nodes of a block and its inner blocks, except those that are
/// swapped already.
std::vector<Node*> nodes_of(Block* block) {
  std::vector<Node*> nodes;
  for (auto* node : block->nodes()) {
    if (is_swapped(node)) {
      continue;
    }
    nodes.push_back(node);
    for (auto* inner : node->blocks()) {
      const auto more = nodes_of(inner);
      nodes.insert(nodes.end(), more.begin(), more.end());
    }
  }
  return nodes;
}

/// Returns the path of the module whose code a node is from, as "blocks.3.att".
std::string path_of(const Node* node) {
  std::string path;
  if (const auto stack = node->callstack()) {
    for (const auto& call : (*stack)->vec()) {
      const auto& instance = std::get<2>(call);
      if (instance && instance->instance_name() != "SELF") {
        path += (path.empty() ? "" : ".") + instance->instance_name();
      }
    }
  }
  return path;
}

/// Returns whether an operator may promote its first input to the dtype of
/// another tensor.
bool may_promote(const Node* node) {
  return graphs::is(node, {"aten::add", "aten::mul", "aten::div"}) &&
      graphs::is_tensor(node->input(1));
}

/// Casts the output of an operator to the dtype of its first input. Does not
/// use type_as, since TorchScript's symbolic differentiation would keep its
/// operands.
void keep_dtype(Graph& graph, Node* node) {
  const torch::jit::WithInsertPoint point(node->next());
  auto* dtype = graph.insert(c10::prim::dtype, {node->input(0)});
  auto* cast = graph.insert(c10::aten::to, {node->output(), dtype});
  node->output()->replaceAllUsesAfterNodeWith(cast->node(), cast);
}

/// Replaces in-place operators that change scores by ones that return a new
/// tensor, where the difference cannot be observed, so that the graph's values
/// show every change. The results keep the dtype, as they did in place.
void name_changes(const std::shared_ptr<Graph>& graph) {
  std::unordered_set<const Node*> before;
  for (const auto* node : nodes_of(graph->block())) {
    if (may_promote(node)) {
      before.insert(node);
    }
  }
  torch::jit::RemoveTensorMutation(graph, [](Node* node) {
    return graphs::is(
        node,
        {"aten::masked_fill_",
         "aten::add_",
         "aten::mul_",
         "aten::div_",
         "aten::tanh_",
         "aten::dropout_"});
  });
  for (auto* node : nodes_of(graph->block())) {
    if (may_promote(node) && before.count(node) == 0) {
      keep_dtype(*graph, node);
    }
  }
}

std::vector<Node*> softmaxes_of(Graph& graph) {
  auto nodes = nodes_of(graph.block());
  nodes.erase(
      std::remove_if(
          nodes.begin(),
          nodes.end(),
          [](const Node* node) {
            return !graphs::is(node, {"aten::softmax"});
          }),
      nodes.end());
  return nodes;
}

/// Returns whether entering the branches that a softmax gets its scores from
/// yields attention that we support, or further branches. Tries it on a copy of
/// the graph.
bool has_attention_in_branches(
    const torch::jit::Module& module,
    Graph& graph,
    size_t number) {
  const auto attempt = graph.copy();
  const auto entered =
      graphs::enter_branches(module, attempt, softmaxes_of(*attempt)[number]);
  torch::jit::EliminateDeadCode(attempt);
  return std::any_of(entered.begin(), entered.end(), [&](Node* softmax) {
    return graphs::find_attention(module, softmax).attention ||
        graphs::comes_from_branches(softmax);
  });
}

/// Copies attention into the branches that change its scores, if the copies are
/// attention that we support.
void enter_all_branches(
    const torch::jit::Module& module,
    const std::shared_ptr<Graph>& graph) {
  auto softmaxes = softmaxes_of(*graph);
  // Each of several branches in a row doubles the softmaxes: limit them.
  const auto most = 8 + 4 * softmaxes.size();
  for (size_t i = 0; i < softmaxes.size() && softmaxes.size() < most;) {
    if (!graphs::comes_from_branches(softmaxes[i]) ||
        !has_attention_in_branches(module, *graph, i)) {
      ++i;
      continue;
    }
    graphs::enter_branches(module, graph, softmaxes[i]);
    torch::jit::EliminateDeadCode(graph);
    softmaxes = softmaxes_of(*graph);
  }
}

/// Returns whether to swap the place with this number, from 0 on. Empty: swap
/// all places.
using Wanted = std::function<bool(size_t)>;

/// Swaps attention in the graph of one method.
class Swap {
 public:
  Swap(
      const torch::jit::Module& module,
      std::string method,
      const Wanted& wanted,
      size_t first_place)
      : module_(module),
        method_(std::move(method)),
        wanted_(wanted),
        next_place_(first_place) {}

  GraphSwapReport run(std::shared_ptr<Graph> graph) {
    torch::jit::Inline(*graph);
    torch::jit::ConstantPropagation(graph);
    torch::jit::EliminateDeadCode(graph);
    name_changes(graph);
    graphs::read_sizes_of_operands(*graph);
    enter_all_branches(module_, graph);
    swap_softmaxes(graph);
    for (auto* node : nodes_of(graph->block())) {
      graphs::take_apart(node);
    }
    for (auto* node : nodes_of(graph->block())) {
      if (graphs::is(node, {"aten::scaled_dot_product_attention"}) &&
          is_wanted()) {
        report_.swapped.push_back(
            {place_of(node), graphs::replace_sdpa_node(node)});
      }
    }
    torch::jit::EliminateDeadCode(graph);
    graph->lint();
    return report_;
  }

  /// Returns the number of the first place in the next graph.
  size_t next_place() const {
    return next_place_;
  }

 private:
  bool is_wanted() {
    const auto place = next_place_++;
    return !wanted_ || wanted_(place);
  }

  std::string place_of(const Node* node) const {
    const auto path = path_of(node);
    return path.empty() ? method_ : method_ + ": " + path;
  }

  void swap_softmaxes(const std::shared_ptr<Graph>& graph) {
    torch::jit::AliasDb aliases(graph);
    std::vector<AttentionNodes> all;
    for (auto* node : softmaxes_of(*graph)) {
      auto finding = graphs::find_attention(module_, node);
      if (finding.attention &&
          graphs::is_changed(*finding.attention, module_, aliases)) {
        finding.reason = "what it reads is changed in place";
        finding.attention.reset();
      }
      if (finding.attention) {
        all.push_back(*finding.attention);
      } else if (!finding.reason.empty()) {
        report_.left_alone.push_back({place_of(node), finding.reason});
      }
    }
    for (const auto& found : all) {
      if (is_wanted()) {
        report_.swapped.push_back(
            {place_of(found.softmax), graphs::replace_attention(found)});
      }
    }
  }

  const torch::jit::Module& module_;
  std::string method_;
  const Wanted& wanted_;
  size_t next_place_;
  GraphSwapReport report_;
};

/// A model with our attention, which shares its weights with the original one.
struct SwappedModel {
  torch::jit::Module module;
  GraphSwapReport report;
  /// the number of places found in the model
  size_t num_places = 0;
};

SwappedModel swap_places(
    const torch::jit::Module& module,
    const Wanted& wanted = {}) {
  // Copies the code, but not the weights: a graph that has run once keeps its
  // compiled program.
  SwappedModel swapped{module.clone(/*inplace=*/true), {}};
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const auto& method : swapped.module.get_methods()) {
    auto* function = torch::jit::tryToGraphFunction(method.function());
    if (function == nullptr) {
      continue;
    }
    Swap swap(swapped.module, method.name(), wanted, swapped.num_places);
    const auto report = swap.run(function->graph());
    swapped.num_places = swap.next_place();
    append(swapped.report.swapped, report.swapped);
    append(swapped.report.left_alone, report.left_alone);
  }
  return swapped;
}

/// Returns what is wrong with a swapped model; empty if nothing is.
using Problem = std::function<std::string(const torch::jit::Module&)>;

/// A model that can be saved and loaded has to stay so.
Problem problem_of_saving(const torch::jit::Module& module) {
  if (!graphs::obstacle_to_saving(module).empty()) {
    return [](const torch::jit::Module& /*swapped*/) { return std::string(); };
  }
  return [](const torch::jit::Module& swapped) {
    const auto obstacle = graphs::obstacle_to_saving(swapped);
    return obstacle.empty() ? "" : "the model could not be saved: " + obstacle;
  };
}

/// The outputs for the example have to stay the same.
Problem problem_of_example(
    const torch::jit::Module& module,
    const std::vector<c10::IValue>& example) {
  const auto expected = graphs::run_copy(module, example);
  const auto again =
      graphs::difference_of(graphs::run_copy(module, example), expected);
  TORCH_ATTENTION_CHECK(
      again.empty(),
      "swap_attention: expected a model whose outputs for the example "
      "repeat, but got outputs that differ {} in a second run; call "
      "eval() on a model that drops weights",
      again);
  return [=](const torch::jit::Module& swapped) -> std::string {
    try {
      const auto found =
          graphs::difference_of(graphs::run_copy(swapped, example), expected);
      return found.empty() ? ""
                           : "the outputs of the example would differ " + found;
    } catch (const std::exception& error) {
      return std::string("the example would throw: ") + error.what();
    }
  };
}

/// Swaps all places or, if that fails, those that can be swapped alone.
SwappedModel swap_without(
    const torch::jit::Module& module,
    const Problem& problem) {
  auto all = swap_places(module);
  if (all.report.swapped.empty() || problem(all.module).empty()) {
    return all;
  }
  std::vector<bool> is_wanted(all.num_places);
  std::vector<GraphSwapReport::Place> different;
  for (size_t place = 0; place < all.num_places; ++place) {
    const auto one =
        swap_places(module, [place](size_t i) { return i == place; });
    const auto found = problem(one.module);
    is_wanted[place] = found.empty();
    if (!found.empty()) {
      different.push_back({one.report.swapped.at(0).where, found});
    }
  }
  auto some = swap_places(module, [&](size_t i) { return bool{is_wanted[i]}; });
  const auto rest = problem(some.module);
  TORCH_ATTENTION_CHECK(
      rest.empty(),
      "swap_attention: expected places that may be swapped together, "
      "since each may be alone, but {}",
      rest);
  auto& left_alone = some.report.left_alone;
  left_alone.insert(left_alone.end(), different.begin(), different.end());
  return some;
}

} // namespace

GraphSwapReport swap_attention(
    torch::jit::Module& module,
    const SwapOptions& options) {
  const auto saving = problem_of_saving(module);
  const auto running = options.example()
      ? problem_of_example(module, *options.example())
      : Problem();
  const auto swapped = swap_without(module, [&](const auto& one) {
    const auto problem = saving(one);
    return problem.empty() && running ? running(one) : problem;
  });
  if (!swapped.report.swapped.empty()) {
    module = swapped.module;
  }
  return swapped.report;
}

std::ostream& operator<<(std::ostream& stream, const GraphSwapReport& report) {
  for (const auto& place : report.swapped) {
    stream << "swapped     " << escaped(place.where) << ": "
           << escaped(place.what) << "\n";
  }
  for (const auto& place : report.left_alone) {
    stream << "left alone  " << escaped(place.where) << ": "
           << escaped(place.what) << "\n";
  }
  if (report.swapped.empty() && report.left_alone.empty()) {
    stream << "no attention found\n";
  }
  return stream;
}

} // namespace torch_attention
