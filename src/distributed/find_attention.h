#pragma once

#include <torch_attention/nn/modules/cross_attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch_attention::distributed {

/// An attention module in another module, by its path: one of the two.
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

/// Returns the attention modules in `module`, itself included, each once.
inline std::vector<FoundAttention> find_attention(torch::nn::Module& module) {
  std::vector<FoundAttention> found;
  std::unordered_set<torch::nn::Module*> seen;
  const std::function<void(const std::string&, torch::nn::Module&)> visit =
      [&](const std::string& path, torch::nn::Module& each) {
        if (!seen.insert(&each).second) {
          return;
        }
        FoundAttention here{path};
        here.self = dynamic_cast<MultiHeadAttentionImpl*>(&each);
        here.cross = dynamic_cast<CrossAttentionImpl*>(&each);
        if (here.self != nullptr || here.cross != nullptr) {
          found.push_back(std::move(here));
          return;
        }
        for (const auto& child : each.named_children()) {
          visit(path + (path.empty() ? "" : ".") + child.key(), *child.value());
        }
      };
  visit("", module);
  return found;
}

} // namespace torch_attention::distributed
