#pragma once

// ordered_dict.h uses TORCH_CHECK and does not include it.
#include <c10/util/Exception.h>

#include <torch/arg.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/weights/layout.h>
#include <torch_attention/weights/write.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention {

/// The result of `convert_layout` and `convert_weights`.
struct TORCH_ATTENTION_API ConvertedWeights {
  /// The tensors of each attention module with the target's names and shapes,
  /// at the position of the module's first tensor; all other tensors unchanged.
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  /// The keys of the source that the target has no use for: masks, and tensors
  /// that the source's layout ignores. For a file, also values that are not
  /// tensors.
  std::vector<std::string> left_out;

  /// Sentences about what is ambiguous: keys and shapes that also fit another
  /// layout.
  std::vector<std::string> remarks;
  /// The file that `convert_weights` read; for a folder, the file chosen in it.
  std::string path;
};

/// Rewrites every attention module among `tensors`, whose names are dotted
/// paths, from layout `source` to layout `target`. With `WeightLayout::book()`
/// as the target, the results have the canonical names and shapes (see
/// `WeightLayout`); with it as the source, `tensors` must have them.
///
/// Results that are not concatenated are views of `tensors` and share their
/// memory.
///
/// `source` may be `automatic()`, which recognises the layout of each module by
/// its names and shapes; `target` may not. Targets that list heads need
/// `num_heads`, unless the source lists them as well.
///
/// Throws c10::Error if no attention has the layout `source`, several layouts
/// fit, the shapes do not belong to one attention module, or `target` cannot
/// hold a tensor.
///
/// Example:
/// ```
/// const auto gpt2 = read_weights("gpt2.safetensors");
/// const auto ours = convert_layout(
///     gpt2, WeightLayout::automatic(), WeightLayout::book());
/// std::cout << ours.tensors["h.0.attn.W_query.weight"].sizes();
/// ```
TORCH_ATTENTION_API ConvertedWeights convert_layout(
    const torch::OrderedDict<std::string, torch::Tensor>& tensors,
    const WeightLayout& source,
    const WeightLayout& target,
    std::optional<int64_t> num_heads = std::nullopt);

/// Options for `convert_weights`.
///
/// Example:
/// ```
/// convert_weights("model.pt", "half.safetensors",
/// ConvertOptions().dtype(torch::kHalf));
/// ```
struct TORCH_ATTENTION_API ConvertOptions {
  using Progress = std::function<void(uint64_t bytes, uint64_t of_all)>;

  /// layout of attention in the source file. Default: WeightLayout::automatic()
  TORCH_ARG(WeightLayout, source) = WeightLayout::automatic();

  /// layout of attention in the written file. Default: as in the source file
  TORCH_ARG(std::optional<WeightLayout>, target) = std::nullopt;

  /// dotted path inside the file; only tensors below it are converted, and the
  /// prefix is removed from their names. Default: the file's state dict
  TORCH_ARG(std::string, prefix) = "";

  /// format of the written file. Default: FileFormat::kByExtension
  TORCH_ARG(FileFormat, format) = FileFormat::kByExtension;

  /// dtype of the floating-point tensors; quantized weights are written in
  /// another one, or in another layout, only with `dequantize`. Default:
  /// unchanged
  TORCH_ARG(std::optional<torch::ScalarType>, dtype) = std::nullopt;

  /// folder of a LoRA adapter that PEFT saved: each weight W that it changes is
  /// W + B A * scale, computed in float32. Default: none
  TORCH_ARG(std::string, adapter) = "";

  /// write the values of weights that are stored quantized; without it
  /// integers and scales are written as they are, and torchao's, which need the
  /// header of their file, are refused. Default: false
  TORCH_ARG(bool, dequantize) = false;

  /// number of heads, for layouts that list them. Default: not known
  TORCH_ARG(std::optional<int64_t>, num_heads) = std::nullopt;

  /// function that is called after each tensor with the number of its bytes as
  /// written, and the number of bytes of all tensors as `from` stores them.
  /// Default: none
  TORCH_ARG(Progress, progress);
};

/// Reads the weights of `from` as `read_weights` does, and writes them to `to`
/// as `write_weights` does: in another format, layout or dtype. If the keys and
/// shapes fit two layouts, a `config.json` next to `from` decides. Values stay
/// in the file, which is mapped into memory, until they are written.
///
/// Returns the tensors that were written, in the dtypes of `from`, and what was
/// left out, including values that are not tensors. The tensors refer to the
/// mapped bytes of `from`: if that file is changed in place later, so are they.
/// Tensors whose values were computed, one at a time, have none any more: they
/// are on the device meta.
///
/// Throws c10::Error in the cases of these functions and of `convert_layout`,
/// and if tensors repeat the file's bytes so often that a small file would
/// become a huge one.
///
/// Example:
/// ```
/// convert_weights("gpt2.bin", "attention.safetensors",
/// ConvertOptions().prefix("h.0.attn").target(WeightLayout::book()));
/// ```
TORCH_ATTENTION_API ConvertedWeights convert_weights(
    const std::string& from,
    const std::string& to,
    const ConvertOptions& options = {});

} // namespace torch_attention
