#pragma once

// ordered_dict.h uses TORCH_CHECK and does not include it.
#include <c10/util/Exception.h>

#include <torch/arg.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <torch_attention/export.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace torch_attention {

/// The file formats that `write_weights` writes.
enum class FileFormat {
  /// Chosen by the file's extension: `.safetensors`, or `.pt`, `.pth`, `.bin`
  /// for the format of `torch.save`.
  kByExtension,
  /// Safetensors, with a checksum of each tensor in `__metadata__`.
  kSafetensors,
  /// A zip archive as written by `torch.save(state_dict, path)`. Python reads
  /// it with `torch.load(path, weights_only=True)`.
  kTorch,
};

/// Options for `write_weights`.
///
/// Example:
/// ```
/// write_weights(tensors, "a.safetensors",
/// WriteOptions().dtype(torch::kHalf).metadata({{"step", "1000"}}));
/// ```
struct TORCH_ATTENTION_API WriteOptions {
  using Metadata = std::map<std::string, std::string>;
  using Progress = std::function<void(uint64_t bytes)>;

  /// format of the file. Default: FileFormat::kByExtension
  TORCH_ARG(FileFormat, format) = FileFormat::kByExtension;

  /// dtype of the floating-point tensors in the file. Default: unchanged
  TORCH_ARG(std::optional<torch::ScalarType>, dtype) = std::nullopt;

  /// values for `__metadata__`, which only safetensors files have. Default:
  /// none
  TORCH_ARG(Metadata, metadata);

  /// function that is called after each tensor with its number of bytes;
  /// tensors that share their bytes in the file count once. Default: none
  TORCH_ARG(Progress, progress);
};

/// Writes tensors to a file, under their names and in their order.
///
/// Writes the values of each tensor in row-major order, whatever its strides
/// and device: views, expanded, conjugate and negative tensors, too. In the
/// format of `torch.save`, several names of one tensor share its bytes. The new
/// file is written next to `path` and then renamed: a crash, a full disk or an
/// exception leaves the old file unchanged. Symbolic links are followed, and an
/// existing file's mode is preserved; other hard links still refer to the old
/// file. Temporary files that terminated programs left behind are removed.
///
/// Throws c10::Error if the file cannot be written, `path` exists and is not a
/// regular file, or the format cannot hold a tensor; the error names the
/// tensor.
///
/// Example:
/// ```
/// torch::OrderedDict<std::string, torch::Tensor> tensors;
/// tensors.insert("weight", torch::rand({2, 3}));
/// write_weights(tensors, "weights.pt");
/// ```
TORCH_ATTENTION_API void write_weights(
    const torch::OrderedDict<std::string, torch::Tensor>& tensors,
    const std::string& path,
    const WriteOptions& options = {});

} // namespace torch_attention
