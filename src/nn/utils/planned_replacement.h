#pragma once

#include <torch/nn/module.h>

#include <torch_attention/nn/utils/swap.h>

#include <cstddef>
#include <memory>
#include <string>

namespace torch_attention::detail {

/// A replacement in a module tree that has passed all checks of
/// `replace_module`, so that all replacements of a model can be made, or none.
class PlannedReplacement {
 public:
  /// Throws c10::Error as `replace_module` does.
  PlannedReplacement(
      torch::nn::Module& root,
      const std::string& path,
      Replacement replacement);

  /// Replaces the module and returns the old one. Does not allocate.
  std::shared_ptr<torch::nn::Module> run();

 private:
  torch::nn::Module* parent_ = nullptr;
  std::string name_;
  size_t index_ = 0;
  std::shared_ptr<torch::nn::Module> old_;
  Replacement replacement_;
};

} // namespace torch_attention::detail
