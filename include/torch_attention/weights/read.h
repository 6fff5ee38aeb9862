#pragma once

// ordered_dict.h uses TORCH_CHECK and does not include it.
#include <c10/util/Exception.h>

#include <torch/arg.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <torch_attention/export.h>

#include <optional>
#include <string>

namespace torch_attention {

/// Options for `read_weights`.
///
/// Example:
/// ```
/// read_weights("model.safetensors", ReadOptions().prefix("model.layers.0"));
/// ```
struct TORCH_ATTENTION_API ReadOptions {
  /// dotted path inside the file; only tensors below it are read, and the path
  /// is removed from their names. Default: the file's state dict
  TORCH_ARG(std::string, prefix) = "";

  /// dtype of the floating-point tensors; quantized weights have another one
  /// only with `dequantize`. Default: as in the file
  TORCH_ARG(std::optional<torch::ScalarType>, dtype) = std::nullopt;

  /// device of the tensors. Default: CPU
  TORCH_ARG(torch::Device, device) = torch::kCPU;

  /// map the file into memory instead of copying the values, so that only used
  /// parts take up memory. Changes to the tensors do not reach the file; the
  /// file must not be truncated while they live. Tensors that `dtype` or
  /// `device` change are still copied. Default: false
  TORCH_ARG(bool, mmap) = false;

  /// folder of a LoRA adapter that PEFT saved: each weight W that it changes is
  /// W + B A * scale, computed in float32. Default: none
  TORCH_ARG(std::string, adapter) = "";

  /// compute the values of weights that are stored quantized (GGUF, FP8, GPTQ,
  /// AWQ, compressed-tensors, bitsandbytes, torchao): one float32 tensor (of
  /// torchao, one of the original dtype) instead of integers and scales.
  /// Without it tensors are returned as they are stored, and a file with blocks
  /// that are no tensors (GGUF) is refused. Default: false
  TORCH_ARG(bool, dequantize) = false;

  /// read all values and verify their checksums, if the file has any. Default:
  /// true
  TORCH_ARG(bool, check) = true;
};

/// Reads the names and tensors of a file, in its order, like Python's
/// `torch.load(path, weights_only=True)` or safetensors' `load_file`.
///
/// Recognises, by content and not by name, all formats that `load_weights`
/// reads: `torch.save` files (in a checkpoint, its state dict or the part that
/// `prefix` selects), TorchScript and C++ archives, `torch.export` archives,
/// safetensors files and the index of a model in several of them, GGUF files,
/// and the folders of distributed checkpoints. Never runs code from a file. A
/// tensor with several names in the file is one tensor in the result; different
/// tensors do not share memory unless `mmap` is set. Values that are not
/// tensors are left out.
///
/// Throws c10::Error if the file is invalid, nothing is below the prefix, a
/// tensor cannot be read (sparse, quantized), or views of the same bytes would
/// take many times the file's memory.
///
/// Example:
/// ```
/// for (const auto& item : read_weights("checkpoint.pt")) {
///   std::cout << item.key() << " " << item.value().sizes() << "\n";
/// }
/// ```
TORCH_ATTENTION_API torch::OrderedDict<std::string, torch::Tensor> read_weights(
    const std::string& path,
    const ReadOptions& options = {});

} // namespace torch_attention
