#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/weights/layout.h>
#include <torch_attention/weights/write.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch_attention {

/// Options for `save_weights`.
///
/// Example:
/// ```
/// save_weights(*attention, "gpt2.safetensors",
/// SaveOptions().layout(WeightLayout::gpt2()).prefix("h.0.attn"));
/// ```
struct TORCH_ATTENTION_API SaveOptions {
  /// format of the file. Default: FileFormat::kByExtension
  TORCH_ARG(FileFormat, format) = FileFormat::kByExtension;

  /// dotted path that is prepended to every key. Default: none
  TORCH_ARG(std::string, prefix) = "";

  /// layout of the weights in the file. Default: the module's own keys and
  /// shapes
  TORCH_ARG(std::optional<WeightLayout>, layout) = std::nullopt;

  /// number of heads, for layouts that list them. Default: unknown
  TORCH_ARG(std::optional<int64_t>, num_heads) = std::nullopt;

  /// dtype of the floating-point tensors in the file. Default: the module's
  TORCH_ARG(std::optional<torch::ScalarType>, dtype) = std::nullopt;
};

/// Writes the parameters and buffers of `module` to a file, with the keys of
/// Python's `state_dict`, as `write_weights` does.
///
/// Throws c10::Error if the file cannot be written, or its format cannot hold a
/// tensor.
///
/// Example:
/// ```
/// save_weights(*attention, "attention.safetensors");
/// ```
TORCH_ATTENTION_API void save_weights(
    const torch::nn::Module& module,
    const std::string& path,
    const SaveOptions& options = {});

} // namespace torch_attention
