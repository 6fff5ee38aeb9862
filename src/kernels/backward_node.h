#pragma once

#include <kernels/plain.h>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// Our kernels in autograd's graph. This does the work of
/// `torch::autograd::Function` in a fraction of its time, which would be most
/// of the time of a small attention.
namespace torch_attention::kernels {

using torch::autograd::variable_list;

/// Borrowed tensors, without a reference count for each.
using TensorPointers = c10::ArrayRef<const torch::Tensor*>;

/// The request for a backward pass.
struct BackwardRequest {
  /// The tensors as `record_backward` got them: inputs, then `others`.
  variable_list saved;
  torch::Tensor grad_output;
  /// For each input, true if its gradient is wanted.
  std::vector<bool> wanted;
  /// True if the gradients must come from operators: they are to be
  /// differentiated in turn (create_graph), or `grad_output` has no memory of
  /// its own (vmap).
  bool by_operators = false;
};

/// An output that its own backward pass reads. Users may change it in place, as
/// `y += x` does, which is no error for the output of a matmul. So autograd
/// must not compare its version, and readers check `is_changed` first.
class SavedOutput {
 public:
  SavedOutput() = default;
  explicit SavedOutput(const torch::Tensor& output)
      : version_(torch::autograd::impl::version_counter(output)),
        saved_(version_.current_version()) {}

  /// Returns the data of `output`, to be saved, with a version of its own.
  static torch::Tensor numbers(const torch::Tensor& output) {
    return output.variable_data();
  }

  bool is_changed() const {
    return version_.current_version() != saved_;
  }

 private:
  c10::VariableVersion version_{0};
  uint32_t saved_ = 0;
};

/// Calls a `Backward`, which has a `kName` and
///   variable_list operator()(const BackwardRequest&) const
/// that returns one gradient for each input, undefined where none is wanted.
template <typename Backward>
class BackwardNode : public torch::autograd::Node {
 public:
  void save(Backward backward, TensorPointers inputs, TensorPointers others) {
    backward_ = std::move(backward);
    saved_.reserve(inputs.size() + others.size());
    for (const auto& list : {inputs, others}) {
      for (const auto* x : list) {
        saved_.emplace_back(*x, /*is_output=*/false);
      }
    }
  }

  variable_list apply(variable_list&& grad_outputs) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto num_inputs = num_outputs();
    BackwardRequest request;
    if (!grad_outputs[0].defined()) {
      return variable_list(num_inputs);
    }
    request.grad_output = materialized(grad_outputs[0]);
    request.by_operators =
        torch::GradMode::is_enabled() || !is_plain(request.grad_output);
    for (size_t i = 0; i < num_inputs; ++i) {
      request.wanted.push_back(task_should_compute_output(i));
    }
    request.saved.reserve(saved_.size());
    for (const auto& x : saved_) {
      request.saved.push_back(x.unpack(getptr()));
    }
    return backward_(request);
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& x : saved_) {
      x.reset_data();
    }
  }

  std::string name() const override {
    return Backward::kName;
  }

 private:
  Backward backward_;
  std::vector<torch::autograd::SavedVariable> saved_;
};

/// Makes a node as LibTorch owns it: before 2.15 by std::shared_ptr.
template <typename NodeType>
auto make_node() {
  using Pointer = decltype(torch::autograd::Edge::function);
  if constexpr (std::is_same_v<
                    Pointer,
                    std::shared_ptr<torch::autograd::Node>>) {
    // LibTorch's way to delete a long graph without recursion.
    return std::shared_ptr<NodeType>(
        new NodeType(), [](NodeType* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<NodeType>();
  }
}

/// Returns whether autograd records what is computed from `inputs`.
inline bool is_recorded(TensorPointers inputs) {
  if (torch::GradMode::is_enabled()) {
    for (const auto* x : inputs) {
      if (x->defined() && x->requires_grad()) {
        return true;
      }
    }
  }
  return false;
}

/// Puts `node` between `output`, which must not be shared yet, and `inputs` in
/// autograd's graph.
template <typename NodePointer>
void set_edges(
    const NodePointer& node,
    const torch::Tensor& output,
    TensorPointers inputs) {
  torch::autograd::edge_list edges;
  edges.reserve(inputs.size());
  for (const auto* x : inputs) {
    edges.push_back(
        x->defined() ? torch::autograd::impl::gradient_edge(*x)
                     : torch::autograd::Edge());
  }
  node->set_next_edges(std::move(edges));
  const auto output_nr = node->add_input_metadata(output);
  torch::autograd::impl::set_gradient_edge(output, {node, output_nr});
}

/// Records `output`, which must not be shared yet, as the result of `inputs` in
/// autograd's graph. The backward pass gets `inputs` and `others`, which must
/// not contain `output` itself: pass the `numbers` of a SavedOutput.
template <typename Backward>
void record_backward(
    Backward backward,
    const torch::Tensor& output,
    TensorPointers inputs,
    TensorPointers others = {}) {
  const auto node = make_node<BackwardNode<Backward>>();
  set_edges(node, output, inputs);
  node->save(std::move(backward), inputs, others);
}

/// Records a linear function like `record_backward`. Its backward pass gets the
/// gradient alone, and no tensor is saved.
template <typename Backward>
void record_linear(
    Backward backward,
    const torch::Tensor& output,
    const torch::Tensor& input) {
  const auto node = make_node<BackwardNode<Backward>>();
  set_edges(node, output, {&input});
  node->save(std::move(backward), {}, {});
}

/// Returns the gradients of the `wanted` ones of `inputs`, which can be
/// differentiated again if GradMode is enabled. `output_of` computes the output
/// from such inputs by operators that autograd records.
template <typename OutputOf>
variable_list differentiable_gradients(
    const variable_list& inputs,
    const BackwardRequest& request,
    const OutputOf& output_of) {
  // Aliases, since inputs may be the same tensor or depend on each other, but
  // partial derivatives are needed.
  const bool differentiable = torch::GradMode::is_enabled();
  const torch::AutoGradMode record(true);
  auto aliases = inputs;
  variable_list wanted;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (request.wanted[i]) {
      aliases[i] = inputs[i].view_as(inputs[i]);
      wanted.push_back(aliases[i]);
    }
  }
  const auto found = torch::autograd::grad(
      {output_of(aliases)},
      wanted,
      {request.grad_output},
      /*retain_graph=*/true,
      /*create_graph=*/differentiable);
  variable_list gradients(inputs.size());
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (request.wanted[i]) {
      gradients[i] = found[next++];
    }
  }
  return gradients;
}

} // namespace torch_attention::kernels
