#pragma once

#include <torch_attention/nn/modules/causal_attention.h>
#include <torch_attention/nn/modules/cross_attention.h>
#include <torch_attention/nn/modules/latent_attention.h>
#include <torch_attention/nn/modules/longformer_attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/multi_head_attention_wrapper.h>
#include <torch_attention/nn/modules/relative_attention.h>
#include <torch_attention/nn/modules/self_attention.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch_attention::distributed {

/// An attention module in another module; one of the two pointers is set.
struct FoundAttention {
  std::string path;
  MultiHeadAttentionImpl* self = nullptr;
  CrossAttentionImpl* cross = nullptr;

  /// Calls `fn` with the module.
  template <typename Fn>
  void visit(const Fn& fn) const {
    if (self != nullptr) {
      fn(*self);
    } else {
      fn(*cross);
    }
  }
};

/// Calls `visit` with the path of each module in `module`, including `module`
/// itself, once each. Skips the children if `visit` returns false.
inline void visit_modules(
    torch::nn::Module& module,
    const std::function<bool(const std::string&, torch::nn::Module&)>& visit) {
  std::unordered_set<torch::nn::Module*> seen;
  const std::function<void(const std::string&, torch::nn::Module&)>
      visit_below = [&](const std::string& path, torch::nn::Module& each) {
        if (!seen.insert(&each).second || !visit(path, each)) {
          return;
        }
        for (const auto& child : each.named_children()) {
          visit_below(
              path + (path.empty() ? "" : ".") + child.key(), *child.value());
        }
      };
  visit_below("", module);
}

/// Returns the attention modules in `module`, including itself, once each.
inline std::vector<FoundAttention> find_attention(torch::nn::Module& module) {
  std::vector<FoundAttention> found;
  visit_modules(module, [&](const std::string& path, torch::nn::Module& each) {
    FoundAttention here{path};
    here.self = dynamic_cast<MultiHeadAttentionImpl*>(&each);
    here.cross = dynamic_cast<CrossAttentionImpl*>(&each);
    if (here.self == nullptr && here.cross == nullptr) {
      return true;
    }
    found.push_back(std::move(here));
    return false;
  });
  return found;
}

/// Returns the device of the weights, CPU if there are none.
inline torch::Device device_of(const std::vector<FoundAttention>& found) {
  auto device = torch::Device(torch::kCPU);
  for (const auto& each : found) {
    each.visit([&](const auto& attention) {
      device = attention.W_query->weight.device();
    });
  }
  return device;
}

/// Returns the class of an attention module that cannot share tokens with other
/// processes, or nullptr for any other module. LibTorch's transformers, and our
/// replacements for them, have torch::nn::MultiheadAttention in each layer.
inline const char* other_attention(const torch::nn::Module& module) {
  using torch::nn::MultiheadAttentionImpl;
  if (dynamic_cast<const CausalAttentionImpl*>(&module) != nullptr) {
    return "CausalAttention";
  }
  if (dynamic_cast<const LatentAttentionImpl*>(&module) != nullptr) {
    return "LatentAttention";
  }
  if (dynamic_cast<const LongformerAttentionImpl*>(&module) != nullptr) {
    return "LongformerAttention";
  }
  if (dynamic_cast<const MultiHeadAttentionWrapperImpl*>(&module) != nullptr) {
    return "MultiHeadAttentionWrapper";
  }
  if (dynamic_cast<const RelativeAttentionImpl*>(&module) != nullptr) {
    return "RelativeAttention";
  }
  if (dynamic_cast<const SelfAttentionV1Impl*>(&module) != nullptr) {
    return "SelfAttentionV1";
  }
  if (dynamic_cast<const SelfAttentionV2Impl*>(&module) != nullptr) {
    return "SelfAttentionV2";
  }
  if (dynamic_cast<const MultiheadAttentionImpl*>(&module) != nullptr) {
    return "torch::nn::MultiheadAttention";
  }
  return nullptr;
}

} // namespace torch_attention::distributed
