#include <operators/attention.h>

#include <check.h>
#include <kernels/choice.h>
#include <kernels/heads.h>
#include <kernels/plain.h>
#include <kernels/tiled.h>
#include <nn/functional/checked_attention.h>
#include <operators/attention_call.h>
#include <torch_attention/nn/functional/attention.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>

namespace torch_attention::operators {

namespace {

using torch::autograd::variable_list;

/// Enables autograd inside a kernel, which the dispatcher calls below autograd.
struct AutogradInside {
  const c10::impl::ForceDispatchKeyGuard keys{
      c10::impl::tls_local_dispatch_key_set().included_ |
          c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView),
      c10::impl::tls_local_dispatch_key_set().excluded_ -
          c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  const torch::AutoGradMode record{true};
};

/// The stack of a backward operator: `num_first` tensors, which are gradients
/// and the forward operator's results, then `wanted`, then the forward
/// operator's arguments.
struct Request {
  Request(const Stack& stack, size_t num_first) {
    const auto values = torch::jit::last(stack, num_first + 1 + kNumArguments);
    for (size_t i = 0; i < num_first; ++i) {
      first.push_back(values[i].toTensor());
    }
    wanted = values[num_first].toBoolList();
    arguments.assign(values.end() - kNumArguments, values.end());
    // read_sizes checks the devices of the arguments, too.
    const auto device = read_sizes(arguments).query.device();
    for (const auto& x : first) {
      kernels::check_device("attention", "gradients and results", x, device);
    }
    TORCH_ATTENTION_CHECK(
        wanted.size() == kDifferentiable.size(),
        "attention: expected `wanted` for query, key, value, bias, "
        "alibi_slopes and sinks, but got {} values",
        wanted.size());
  }

  /// Returns the number of values on the stack.
  size_t size() const {
    return first.size() + 1 + arguments.size();
  }

  variable_list first;
  c10::List<bool> wanted;
  Stack arguments;
};

/// Replaces the wanted arguments by leaves of a new graph.
variable_list make_leaves(Request& request) {
  variable_list leaves;
  for (size_t k = 0; k < kDifferentiable.size(); ++k) {
    if (request.wanted[k]) {
      auto& argument = request.arguments[kDifferentiable[k]];
      leaves.push_back(argument.toTensor().detach().requires_grad_());
      argument = leaves.back();
    }
  }
  return leaves;
}

/// Returns the gradients of `leaves`, with the strides that `gradients_meta`
/// announces.
std::vector<torch::Tensor> gradients_of(
    const Request& request,
    const variable_list& leaves,
    const variable_list& outputs,
    const variable_list& gradients) {
  if (leaves.empty()) {
    return {};
  }
  auto found = torch::autograd::grad(
      outputs,
      leaves,
      gradients,
      /*retain_graph=*/false,
      /*create_graph=*/false,
      /*allow_unused=*/true);
  size_t next = 0;
  for (size_t k = 0; k < kDifferentiable.size(); ++k) {
    if (!request.wanted[k]) {
      continue;
    }
    auto& gradient = found[next];
    if (!gradient.defined()) {
      gradient = at::zeros_like(leaves[next]);
    }
    gradient = k < 3 ? as_output(gradient) : gradient.contiguous();
    ++next;
  }
  return found;
}

/// Returns the output with an autograd history, from the results of the forward
/// pass or computed again.
torch::Tensor recorded_output(
    const kernels::Attention& a,
    const kernels::TiledResults& results) {
  const auto choice = kernels::choose(a, Kernel::kAuto);
  if (choice == kernels::Choice::kTiled) {
    return kernels::tiled_recorded(a, results);
  }
  TORCH_CHECK(
      a.dropout == 0 || results.output.numel() == 0,
      "attention: with dropout there are no gradients here, since LibTorch's "
      "kernels do not say what they dropped");
  return kernels::compute(choice, a);
}

} // namespace

void attention_backward(const Operator& /*op*/, Stack* stack) {
  // grad_output, output, statistics, seed
  Request request(*stack, 4);
  std::vector<torch::Tensor> gradients;
  {
    const AutogradInside autograd;
    const auto leaves = make_leaves(request);
    const auto call = read_call(request.arguments);
    const auto a = functional::detail::checked_attention(
        call.query, call.key, call.value, call.options);
    const bool lacks_batch =
        functional::detail::lacks_batch(call.options, call.query);
    const auto with_batch = [&](const torch::Tensor& x) {
      return lacks_batch ? x.unsqueeze(0) : x;
    };
    kernels::TiledResults results;
    results.output = with_batch(request.first[1]);
    results.statistics = request.first[2];
    if (a.dropout > 0) {
      const auto seed = request.first[3].item<int64_t>();
      std::memcpy(&results.dropout_seed, &seed, sizeof(seed));
    }
    gradients = gradients_of(
        request,
        leaves,
        {recorded_output(a, results)},
        {with_batch(request.first[0])});
  }
  replace_last(*stack, request.size(), {gradients});
}

void attention_with_weights_backward(const Operator& /*op*/, Stack* stack) {
  // grad_output, grad_weights, output, weights
  Request request(*stack, 4);
  std::vector<torch::Tensor> gradients;
  {
    const AutogradInside autograd;
    const auto leaves = make_leaves(request);
    auto call = read_call(request.arguments);
    const auto dropout = call.options.dropout();
    call.options.dropout(0);
    auto [output, weights] =
        functional::scaled_dot_product_attention_with_weights(
            call.query, call.key, call.value, call.options);
    if (dropout > 0) {
      // Dropped weights are 0. Weights that underflowed to 0 have no gradient
      // anyway.
      const auto kept = request.first[3].ne(0);
      weights = dropout < 1 ? weights * kept / (1 - dropout) : weights * kept;
      output =
          at::matmul(weights, kernels::share_heads(call.value, call.query));
    }
    gradients = gradients_of(
        request,
        leaves,
        {output, weights},
        {request.first[0], request.first[1]});
  }
  replace_last(*stack, request.size(), {gradients});
}

void gradients_meta(const Operator& /*op*/, Stack* stack) {
  const Request request(*stack, 4);
  std::vector<torch::Tensor> gradients;
  for (size_t k = 0; k < kDifferentiable.size(); ++k) {
    if (request.wanted[k]) {
      const auto x = request.arguments[kDifferentiable[k]].toTensor();
      const auto sizes = x.sym_sizes();
      gradients.push_back(
          k < 3 ? empty_heads_last({sizes.begin(), sizes.end()}, x.options())
                : at::empty_symint(sizes, x.options()));
    }
  }
  replace_last(*stack, request.size(), {gradients});
}

} // namespace torch_attention::operators
