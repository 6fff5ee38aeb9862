#include <tools/heatmap/model_weights.h>

#include <format_text.h>
#include <torch_attention/weights/read.h>

#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

namespace torch_attention::tools {

namespace {

bool has_end(const std::string& text, const std::string& end) {
  return text.size() >= end.size() &&
      text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string prefix_of(
    const torch::OrderedDict<std::string, torch::Tensor>& tensors,
    const std::string& anchor,
    const std::string& folder) {
  for (const auto& key : tensors.keys()) {
    if (key == anchor || has_end(key, "." + anchor)) {
      return key.substr(0, key.size() - anchor.size());
    }
  }
  C10_THROW_ERROR(
      Error, format_text("expected a tensor \"{}\" in \"{}\"", anchor, folder));
}

} // namespace

ModelWeights::ModelWeights(const std::string& folder, const std::string& anchor)
    : folder_(folder),
      tensors_(read_weights(folder, ReadOptions().mmap(true).check(false))) {
  prefix_ = prefix_of(tensors_, anchor, folder_);
}

const torch::Tensor* ModelWeights::find(const std::string& name) const {
  return tensors_.find(prefix_ + name);
}

bool ModelWeights::contains(const std::string& name) const {
  return find(name) != nullptr;
}

torch::Tensor ModelWeights::get(const std::string& name) const {
  const auto* found = find(name);
  TORCH_CHECK(
      found != nullptr,
      format_text(
          "expected a tensor \"{}{}\" in \"{}\"", prefix_, name, folder_));
  return found->to(torch::kFloat);
}

torch::Tensor ModelWeights::rows(
    const std::string& name,
    const torch::Tensor& indices) const {
  const auto* table = find(name);
  TORCH_CHECK(
      table != nullptr && table->dim() == 2,
      format_text(
          "expected a matrix \"{}{}\" in \"{}\"", prefix_, name, folder_));
  for (int64_t i = 0; i < indices.numel(); ++i) {
    const auto index = indices[i].item<int64_t>();
    TORCH_CHECK(
        index >= 0 && index < table->size(0),
        format_text(
            "expected numbers from 0 to {}, the rows of \"{}{}\", but got {}",
            table->size(0) - 1,
            prefix_,
            name,
            index));
  }
  return table->index_select(0, indices).to(torch::kFloat).unsqueeze(0);
}

torch::Tensor ModelWeights::linear(
    const std::string& name,
    const torch::Tensor& x) const {
  const auto bias = name + ".bias";
  return at::linear(
      x, get(name + ".weight"), contains(bias) ? get(bias) : torch::Tensor());
}

torch::Tensor ModelWeights::transposed_linear(
    const std::string& name,
    const torch::Tensor& x) const {
  return at::linear(x, get(name + ".weight").t(), get(name + ".bias"));
}

torch::Tensor ModelWeights::layer_norm(
    const std::string& name,
    const torch::Tensor& x,
    double eps) const {
  const bool is_old = contains(name + ".gamma");
  return at::layer_norm(
      x,
      {x.size(-1)},
      get(name + (is_old ? ".gamma" : ".weight")),
      get(name + (is_old ? ".beta" : ".bias")),
      eps);
}

torch::Tensor activate(const std::string& name, const torch::Tensor& x) {
  if (name == "gelu" || name == "gelu_python") {
    return at::gelu(x);
  }
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") {
    return at::gelu(x, "tanh");
  }
  if (name == "silu" || name == "swish") {
    return at::silu(x);
  }
  if (name == "relu") {
    return at::relu(x);
  }
  C10_THROW_ERROR(
      Error,
      format_text(
          "expected the activation gelu, gelu_new, gelu_pytorch_tanh, silu or "
          "relu, but got \"{}\"",
          name));
}

} // namespace torch_attention::tools
