#include <tools/heatmap/script_model.h>

#include <check.h>
#include <tools/load_script.h>
#include <torch_attention/jit/swap_attention.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>

#include <exception>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

namespace torch_attention::tools {

namespace {

/// Our operator for attention, with all that a call can have (docs/python.md).
constexpr std::string_view kAttention = "torch_attention::attention";

/// Notes the weights of each attention that this thread computes while it
/// lives. There may be only one at a time.
class AttentionObserver {
 public:
  explicit AttentionObserver(int64_t num_tokens) : num_tokens_(num_tokens) {
    active_ = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&AttentionObserver::on_call)
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  AttentionObserver(const AttentionObserver&) = delete;
  AttentionObserver& operator=(const AttentionObserver&) = delete;
  AttentionObserver(AttentionObserver&&) = delete;
  AttentionObserver& operator=(AttentionObserver&&) = delete;
  ~AttentionObserver() {
    at::removeCallback(handle_);
    active_ = nullptr;
  }

  /// Throws what went wrong while the weights were computed.
  std::vector<LayerWeights> take() {
    if (error_) {
      std::rethrow_exception(error_);
    }
    return std::move(found_);
  }

 private:
  static std::unique_ptr<at::ObserverContext> on_call(
      const at::RecordFunction& function) {
    const auto inputs = function.inputs();
    if (active_ != nullptr && !inputs.empty() &&
        std::string_view(function.name()) == kAttention) {
      active_->note_safely(torch::jit::Stack(inputs.begin(), inputs.end()));
    }
    return nullptr;
  }

  /// LibTorch prints what a callback throws, and goes on.
  void note_safely(const torch::jit::Stack& inputs) {
    try {
      note(inputs);
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  /// Calls the operator with the same arguments that returns the weights, too.
  void note(torch::jit::Stack stack) {
    const auto T = num_tokens_;
    if (stack[0].toTensor().size(-2) != T ||
        stack[1].toTensor().size(-2) != T) {
      return;
    }
    const auto attention = c10::Dispatcher::singleton().findSchemaOrThrow(
        "torch_attention::attention_with_weights", "");
    const bool is_causal =
        stack[*attention.schema().argumentIndexWithName("causal")].toBool();
    attention.callBoxed(stack);
    auto weights =
        stack[1].toTensor().to(torch::kCPU, torch::kFloat).reshape({-1, T, T});
    // A mask that is no more than causal may have stayed a mask.
    const bool causal =
        is_causal || (T > 1 && weights.triu(1).eq(0).all().item<bool>());
    found_.push_back(
        {static_cast<int64_t>(found_.size()), std::move(weights), causal});
  }

  static thread_local AttentionObserver* active_;

  int64_t num_tokens_;
  at::CallbackHandle handle_ = 0;
  std::vector<LayerWeights> found_;
  std::exception_ptr error_;
};

thread_local AttentionObserver* AttentionObserver::active_ = nullptr;

torch::jit::Module load_swapped(const std::string& path) {
  auto model = load_script(
      path,
      c10::kCPU,
      ": give a folder that save_pretrained wrote, or by --input what enters "
      "the attention of one layer");
  model.eval();
  const auto report = swap_attention(model);
  std::ostringstream text;
  text << report;
  TORCH_ATTENTION_CHECK(
      !report.swapped.empty(),
      "found no attention in \"{}\"\n{}",
      path,
      text.str());
  return model;
}

} // namespace

std::vector<LayerWeights> weights_of_script(
    const std::string& path,
    const std::vector<int64_t>& ids,
    const std::vector<int64_t>& layers) {
  const c10::NoGradGuard no_gradients;
  auto model = load_swapped(path);
  AttentionObserver observer(static_cast<int64_t>(ids.size()));
  model.forward({at::tensor(ids).unsqueeze(0)});
  auto all = observer.take();
  TORCH_ATTENTION_CHECK(
      !all.empty(), "\"{}\" computed no attention among the tokens", path);
  if (layers.empty()) {
    return all;
  }
  std::vector<LayerWeights> chosen;
  for (const auto layer : layers) {
    TORCH_ATTENTION_CHECK(
        layer < static_cast<int64_t>(all.size()),
        "expected a layer in [0, {}), which \"{}\" computes, but got {}",
        all.size(),
        path,
        layer);
    chosen.push_back(all[static_cast<size_t>(layer)]);
  }
  return chosen;
}

} // namespace torch_attention::tools
