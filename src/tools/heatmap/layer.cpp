#include <tools/heatmap/layer.h>

#include <check.h>
#include <tools/model_type.h>
#include <tools/module_config.h>
#include <torch_attention/nn/modules/causal_attention.h>
#include <torch_attention/nn/modules/latent_attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/multi_head_attention_wrapper.h>
#include <torch_attention/nn/modules/self_attention.h>
#include <torch_attention/weights/convert.h>
#include <torch_attention/weights/inspect_pretrained.h>
#include <torch_attention/weights/load.h>
#include <torch_attention/weights/read.h>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <tuple>

namespace torch_attention::tools {

namespace {

using WithWeights = std::tuple<torch::Tensor, torch::Tensor>;

/// The layers with which the self-attention of this one comes; none if there is
/// no such layer.
const PretrainedInfo::Layers* find_layer(
    const PretrainedInfo& model,
    PretrainedPart part,
    int64_t layer) {
  for (const auto& found : model.layers) {
    const bool is_part = found.part == part ||
        (part == PretrainedPart::kAuto && found.part == PretrainedPart::kText);
    if (is_part && !found.is_cross &&
        std::binary_search(found.numbers.begin(), found.numbers.end(), layer)) {
      return &found;
    }
  }
  return nullptr;
}

LayerWeights layer_of_folder(
    const LayerSource& source,
    int64_t layer,
    const torch::Tensor& x) {
  auto options = PretrainedOptions().part(source.part);
  const auto model = inspect_pretrained(source.path);
  const auto* found = find_layer(model, source.part, layer);
  ForwardOptions call;
  const auto weights_of = [&](auto attention, bool causal) {
    return LayerWeights{
        layer, std::get<1>(attention->forward_with_weights(x, call)), causal};
  };
  if (!model.layers.empty() && model.layers.front().is_latent) {
    return weights_of(
        latent_attention_from_pretrained(source.path, layer, options),
        /*causal=*/true);
  }
  if (found != nullptr && found->is_relative) {
    const auto attention =
        relative_attention_from_pretrained(source.path, layer, options);
    return weights_of(attention, attention->options.causal());
  }
  if (found != nullptr && found->is_longformer) {
    return weights_of(
        longformer_attention_from_pretrained(source.path, layer, options),
        /*causal=*/false);
  }
  // Loading says why there is no such layer.
  if (found != nullptr && found->needs_bias) {
    const auto T = x.size(1);
    call.bias(relative_bias_from_pretrained(source.path, layer, options)
                  ->forward(T, T));
    options.bias_by_caller(true);
  }
  const auto attention = attention_from_pretrained(source.path, layer, options);
  return weights_of(attention, attention->options.causal());
}

bool has_our_names(const StateDict& tensors) {
  return tensors.contains("W_query") || tensors.contains("W_query.weight") ||
      tensors.contains("heads.0.W_query.weight");
}

/// Calls the module, which is of one of our classes.
WithWeights run(
    torch::nn::AnyModule& module,
    const ModuleConfig& config,
    const torch::Tensor& x) {
  if (config.class_name == "SelfAttentionV1") {
    return module.get<SelfAttentionV1>()->forward_with_weights(x);
  }
  if (config.class_name == "SelfAttentionV2") {
    return module.get<SelfAttentionV2>()->forward_with_weights(x);
  }
  if (config.class_name == "CausalAttention") {
    return module.get<CausalAttention>()->forward_with_weights(x);
  }
  if (config.class_name == "MultiHeadAttentionWrapper") {
    return module.get<MultiHeadAttentionWrapper>()->forward_with_weights(x);
  }
  return module.get<MultiHeadAttention>()->forward_with_weights(x);
}

LayerWeights layer_of_file(
    const LayerSource& source,
    int64_t layer,
    const torch::Tensor& x) {
  auto prefix = source.prefix;
  const auto place = prefix.find("{}");
  if (place != std::string::npos) {
    prefix.replace(place, 2, std::to_string(layer));
  }
  auto tensors =
      read_weights(source.path, ReadOptions().prefix(prefix).mmap(true));
  if (!has_our_names(tensors)) {
    tensors =
        convert_layout(tensors, WeightLayout::automatic(), WeightLayout::book())
            .tensors;
  }
  auto config = infer_config(tensors, source.num_heads);
  TORCH_CHECK(
      config.num_heads > 0,
      "the weights of a MultiHeadAttention do not tell its number of heads: "
      "give it with --num-heads");
  const bool is_self_attention = config.class_name.rfind("Self", 0) == 0;
  config.causal = !source.unmasked && !is_self_attention;
  if (config.context_length == 0) {
    config.context_length = x.size(1);
  }
  auto module = make_module(config, Kernel::kAuto);
  load_weights(
      *module.ptr(),
      source.path,
      LoadOptions()
          .prefix(prefix)
          .mask(MaskPolicy::kOptional)
          .dtype(torch::kFloat));
  module.ptr()->eval();
  return {layer, std::get<1>(run(module, config, x)), config.causal};
}

/// x as a batch of one, in float32.
torch::Tensor batch_of(const torch::Tensor& x) {
  return x.to(torch::kFloat).reshape({1, x.size(-2), x.size(-1)});
}

bool is_model_folder(const std::string& path) {
  return is_known_type(model_type_in(path));
}

} // namespace

LayerWeights weights_of_layer(
    const LayerSource& source,
    int64_t layer,
    const torch::Tensor& x) {
  const c10::NoGradGuard no_gradients;
  const auto input = batch_of(x);
  auto result = is_model_folder(source.path)
      ? layer_of_folder(source, layer, input)
      : layer_of_file(source, layer, input);
  const auto T = input.size(1);
  result.weights = result.weights.to(torch::kFloat).reshape({-1, T, T});
  return result;
}

LayerWeights weights_of_cross_layer(
    const std::string& folder,
    int64_t layer,
    const torch::Tensor& x,
    const torch::Tensor& context) {
  const c10::NoGradGuard no_gradients;
  TORCH_ATTENTION_CHECK(
      is_model_folder(folder),
      "expected a folder of a model with an encoder and a decoder, for the "
      "attention between them, but got \"{}\"",
      folder);
  auto attention = cross_attention_from_pretrained(folder, layer);
  const auto [output, weights] =
      attention->forward_with_weights(batch_of(x), batch_of(context));
  return {layer, weights.to(torch::kFloat).squeeze(0), /*causal=*/false};
}

torch::Tensor read_input(const std::string& path) {
  const auto tensors = read_weights(path);
  TORCH_ATTENTION_CHECK(
      tensors.size() == 1,
      "expected one tensor in \"{}\", but got {}",
      path,
      tensors.size());
  const auto& x = tensors.begin()->value();
  const bool fits = (x.dim() == 2 || (x.dim() == 3 && x.size(0) == 1)) &&
      x.numel() > 0 && x.is_floating_point();
  TORCH_ATTENTION_CHECK(
      fits,
      "expected numbers of shape (T, C) or (1, T, C) in \"{}\", but got "
      "shape ({}) of {}",
      path,
      fmt::join(x.sizes(), ", "),
      c10::toString(x.scalar_type()));
  return x;
}

} // namespace torch_attention::tools
