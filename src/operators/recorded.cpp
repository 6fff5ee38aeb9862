#include <operators/recorded.h>

#include <operators/attention_call.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>
#include <utility>

namespace torch_attention::operators {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kArguments = "arguments";
constexpr const char* kPair = "pair";

class Recorded : public torch::autograd::Function<Recorded> {
 public:
  /// `inputs` are the defined and differentiable tensors of `arguments`.
  /// Autograd needs them as arguments of their own.
  static variable_list forward(
      AutogradContext* ctx,
      at::TensorList /*inputs*/,
      const Pair* pair,
      const torch::jit::Stack& arguments) {
    auto stack = arguments;
    {
      const at::AutoDispatchBelowADInplaceOrView guard;
      find_operator(pair->forward).callBoxed(&stack);
    }
    variable_list outputs;
    variable_list fixed;
    for (size_t i = 0; i < stack.size(); ++i) {
      outputs.push_back(stack[i].toTensor());
      if (i >= pair->num_gradients) {
        fixed.push_back(outputs.back());
      }
    }
    ctx->mark_non_differentiable(fixed);
    // save_for_backward only takes tensors. Other arguments are in a list, by
    // their index.
    variable_list saved;
    c10::impl::GenericList others(c10::AnyType::get());
    for (const auto& argument : arguments) {
      saved.push_back(
          argument.isTensor() ? argument.toTensor() : torch::Tensor());
      others.push_back(argument.isTensor() ? c10::IValue() : argument);
    }
    saved.insert(saved.end(), outputs.begin(), outputs.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data[kArguments] = others;
    ctx->saved_data[kPair] = reinterpret_cast<int64_t>(pair);
    return outputs;
  }

  static variable_list backward(
      AutogradContext* ctx,
      const variable_list& gradients) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a constant of the program
    const auto& pair =
        *reinterpret_cast<const Pair*>(ctx->saved_data[kPair].toInt());
    const auto others = ctx->saved_data[kArguments].toList();
    const auto saved = ctx->get_saved_variables();
    torch::jit::Stack stack(
        gradients.begin(),
        gradients.begin() + static_cast<std::ptrdiff_t>(pair.num_gradients));
    stack.insert(
        stack.end(),
        saved.begin() + static_cast<std::ptrdiff_t>(pair.num_arguments),
        saved.end());
    c10::List<bool> wanted;
    size_t edge = 0;
    for (const auto i : pair.differentiable) {
      wanted.push_back(saved[i].defined() && ctx->needs_input_grad(edge));
      edge += saved[i].defined() ? 1 : 0;
    }
    stack.emplace_back(wanted);
    for (size_t i = 0; i < pair.num_arguments; ++i) {
      stack.push_back(
          saved[i].defined() ? c10::IValue(saved[i]) : c10::IValue(others[i]));
    }
    find_operator(pair.backward).callBoxed(&stack);
    const auto found = stack.back().toTensorVector();
    variable_list result;
    size_t next = 0;
    for (size_t k = 0; k < wanted.size(); ++k) {
      if (saved[pair.differentiable[k]].defined()) {
        result.push_back(wanted[k] ? found[next++] : torch::Tensor());
      }
    }
    // `pair` and `arguments` have no gradients.
    result.resize(result.size() + 2);
    return result;
  }
};

} // namespace

c10::OperatorHandle find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      (std::string("torch_attention::") + name).c_str(), "");
}

bool is_recorded(const Pair& pair, const torch::jit::Stack& stack) {
  const auto arguments = torch::jit::last(stack, pair.num_arguments);
  return torch::GradMode::is_enabled() &&
      std::any_of(
             pair.differentiable.begin(),
             pair.differentiable.end(),
             [&](size_t i) {
               const auto x = tensor_of(arguments[i]);
               return x.defined() && x.requires_grad();
             });
}

variable_list call_recorded(const Pair& pair, const torch::jit::Stack& stack) {
  const auto last = torch::jit::last(stack, pair.num_arguments);
  const torch::jit::Stack arguments(last.begin(), last.end());
  variable_list inputs;
  for (const auto i : pair.differentiable) {
    auto x = tensor_of(arguments[i]);
    if (x.defined()) {
      inputs.push_back(std::move(x));
    }
  }
  return Recorded::apply(at::TensorList(inputs), &pair, arguments);
}

} // namespace torch_attention::operators
