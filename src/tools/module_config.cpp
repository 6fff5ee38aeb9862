#include <tools/module_config.h>

#include <c10/util/Exception.h>

#include <check.h>
#include <format_text.h>
#include <torch_attention/nn/modules/causal_attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/multi_head_attention_wrapper.h>
#include <torch_attention/nn/modules/self_attention.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace torch_attention::tools {

namespace {

MultiHeadAttentionOptions multi_head_options(
    const ModuleConfig& config,
    Kernel kernel) {
  return MultiHeadAttentionOptions(
             config.d_in, config.d_out, config.context_length, config.num_heads)
      .dropout(config.dropout)
      .qkv_bias(config.qkv_bias)
      .causal(config.causal)
      .out_proj(config.out_proj)
      .kernel(kernel);
}

CausalAttentionOptions single_head_options(
    const ModuleConfig& config,
    Kernel kernel) {
  return CausalAttentionOptions(
             config.d_in, config.d_out, config.context_length)
      .dropout(config.dropout)
      .qkv_bias(config.qkv_bias)
      .causal(config.causal)
      .kernel(kernel);
}

/// Returns the first few keys, in quotes.
std::string list_of(const std::vector<std::string>& keys) {
  constexpr size_t kMost = 12;
  const auto end =
      keys.begin() + static_cast<std::ptrdiff_t>(std::min(keys.size(), kMost));
  const auto list =
      format_text("\"{}\"", fmt::join(keys.begin(), end, "\", \""));
  return keys.size() <= kMost
      ? list
      : format_text("{} and {} more", list, keys.size() - kMost);
}

int64_t count_heads(const StateDict& tensors) {
  int64_t count = 0;
  while (tensors.contains(format_text("heads.{}.W_query.weight", count))) {
    ++count;
  }
  return count;
}

} // namespace

ModuleConfig infer_config(
    const StateDict& tensors,
    std::optional<int64_t> num_heads) {
  TORCH_CHECK(
      !tensors.is_empty(),
      "the archive holds no tensors. Was it frozen (torch.jit.freeze)? Then "
      "save it as it was before");
  ModuleConfig config;
  if (const auto* weight = tensors.find("W_query")) {
    config.class_name = "SelfAttentionV1";
    config.d_in = weight->size(0);
    config.d_out = weight->size(1);
    return config;
  }
  const auto heads = count_heads(tensors);
  const std::string head = heads > 0 ? "heads.0." : "";
  const auto* weight = tensors.find(head + "W_query.weight");
  TORCH_ATTENTION_CHECK(
      weight != nullptr && weight->dim() == 2,
      "expected the keys of one of our modules, such as W_query.weight, "
      "but the keys are {}. Is the module deeper in the archive? Then give "
      "its path with --prefix",
      list_of(tensors.keys()));
  config.d_out = weight->size(0);
  config.d_in = weight->size(1);
  config.qkv_bias = tensors.contains(head + "W_query.bias");
  const auto* mask = tensors.find(head + "mask");
  config.context_length = mask != nullptr ? mask->size(0) : 0;
  if (heads > 0) {
    config.class_name = "MultiHeadAttentionWrapper";
    config.num_heads = heads;
  } else if (tensors.contains("out_proj.weight")) {
    config.class_name = "MultiHeadAttention";
    config.num_heads = num_heads.value_or(0);
  } else {
    config.class_name = mask != nullptr ? "CausalAttention" : "SelfAttentionV2";
  }
  return config;
}

torch::nn::AnyModule make_module(const ModuleConfig& config, Kernel kernel) {
  if (config.class_name == "SelfAttentionV1") {
    return torch::nn::AnyModule(SelfAttentionV1(
        SelfAttentionOptions(config.d_in, config.d_out).kernel(kernel)));
  }
  if (config.class_name == "SelfAttentionV2") {
    return torch::nn::AnyModule(
        SelfAttentionV2(SelfAttentionOptions(config.d_in, config.d_out)
                            .qkv_bias(config.qkv_bias)
                            .kernel(kernel)));
  }
  if (config.class_name == "CausalAttention") {
    return torch::nn::AnyModule(
        CausalAttention(single_head_options(config, kernel)));
  }
  if (config.class_name == "MultiHeadAttentionWrapper") {
    return torch::nn::AnyModule(MultiHeadAttentionWrapper(
        MultiHeadAttentionWrapperOptions(
            config.d_in, config.d_out, config.context_length, config.num_heads)
            .dropout(config.dropout)
            .qkv_bias(config.qkv_bias)
            .causal(config.causal)
            .kernel(kernel)));
  }
  TORCH_CHECK(
      config.class_name == "MultiHeadAttention",
      "expected one of our classes, but got \"",
      config.class_name,
      "\"");
  return torch::nn::AnyModule(
      MultiHeadAttention(multi_head_options(config, kernel)));
}

} // namespace torch_attention::tools
