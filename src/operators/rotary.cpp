#include <operators/rotary.h>

#include <check.h>
#include <kernels/plain.h>
#include <nn/functional/rotary.h>
#include <operators/attention_call.h>
#include <operators/recorded.h>
#include <torch_attention/nn/functional/rotary.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <string>
#include <utility>

namespace torch_attention::operators {

namespace {

using torch::jit::Stack;

constexpr size_t kNumRotaryArguments = 14;

RotaryScaling scaling_named(const std::string& name) {
  constexpr std::array kScalings = {
      std::pair{"linear", RotaryScaling::kLinear},
      std::pair{"llama3", RotaryScaling::kLlama3},
      std::pair{"yarn", RotaryScaling::kYarn},
      std::pair{"dynamic", RotaryScaling::kDynamic},
      std::pair{"longrope", RotaryScaling::kLongRope}};
  for (const auto& [text, scaling] : kScalings) {
    if (name == text) {
      return scaling;
    }
  }
  TORCH_ATTENTION_CHECK(
      false,
      "torch_attention::rotary: expected a scaling of linear, llama3, "
      "yarn, dynamic and longrope, but got \"{}\"",
      name);
}

struct RotaryCall {
  torch::Tensor x;
  torch::Tensor positions;
  RotaryOptions options;
};

RotaryCall read_rotary(const Stack& stack) {
  const auto values = torch::jit::last(stack, kNumRotaryArguments);
  size_t next = 0;
  const auto read = [&]() -> const c10::IValue& { return values[next++]; };
  RotaryCall call;
  call.x = read().toTensor();
  call.positions = read().toTensor();
  auto& options = call.options;
  options.theta(read().toDouble());
  options.dim(optional_of<int64_t>(read()));
  options.pairing(
      read().toBool() ? RotaryPairing::kInterleaved : RotaryPairing::kHalves);
  options.factor(read().toDouble());
  options.scaling(scaling_named(read().toStringRef()));
  options.original_context_length(optional_of<int64_t>(read()));
  options.fast_turns(optional_of<double>(read()));
  options.slow_turns(read().toDouble());
  options.attention_factor(optional_of<double>(read()));
  options.truncate(read().toBool());
  options.short_factors(read().toDoubleVector());
  options.long_factors(read().toDoubleVector());
  kernels::check_device("rotary", "positions", call.positions, call.x.device());
  return call;
}

void put(Stack* stack, const torch::Tensor& result) {
  replace_last(*stack, kNumRotaryArguments, {result});
}

class RotaryFunction : public torch::autograd::Function<RotaryFunction> {
 public:
  static torch::Tensor forward(
      torch::autograd::AutogradContext* ctx,
      const torch::Tensor& /*x*/,
      const Stack& arguments) {
    ctx->save_for_backward({arguments[1].toTensor()});
    c10::impl::GenericList others(c10::AnyType::get());
    for (size_t i = 2; i < arguments.size(); ++i) {
      others.push_back(arguments[i]);
    }
    ctx->saved_data["arguments"] = others;
    auto stack = arguments;
    const at::AutoDispatchBelowADInplaceOrView guard;
    find_operator("rotary").callBoxed(&stack);
    return stack.back().toTensor();
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& gradients) {
    Stack stack{gradients[0], ctx->get_saved_variables()[0]};
    for (const c10::IValue& value : ctx->saved_data["arguments"].toList()) {
      stack.push_back(value);
    }
    find_operator("_rotary_backward").callBoxed(&stack);
    return {stack.back().toTensor(), torch::Tensor()};
  }
};

} // namespace

void rotary(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const torch::NoGradGuard no_grad;
  const auto call = read_rotary(*stack);
  put(stack,
      functional::rotary_embedding(call.x, call.positions, call.options)
          .contiguous());
}

void rotary_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const torch::NoGradGuard no_grad;
  const auto call = read_rotary(*stack);
  put(stack,
      functional::detail::apply_rotary(
          call.x, call.positions, call.options, /*backwards=*/true)
          .contiguous());
}

void rotary_meta(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const auto call = read_rotary(*stack);
  put(stack, at::empty_symint(call.x.sym_sizes(), call.x.options()));
}

void rotary_autograd(const c10::OperatorHandle& op, Stack* stack) {
  if (is_transformed(*stack, kNumRotaryArguments) ||
      !is_watched(*stack, kNumRotaryArguments)) {
    const auto call = read_rotary(*stack);
    put(stack,
        functional::rotary_embedding(call.x, call.positions, call.options));
    return;
  }
  const auto last = torch::jit::last(*stack, kNumRotaryArguments);
  const auto x = last[0].toTensor();
  if (torch::GradMode::is_enabled() && x.requires_grad()) {
    put(stack, RotaryFunction::apply(x, Stack(last.begin(), last.end())));
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.callBoxed(stack);
}

} // namespace torch_attention::operators
