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
  /// dotted path inside the file; only tensors below it are read, and their
  /// names are without it. Default: the file's state dict
  TORCH_ARG(std::string, prefix) = "";

  /// dtype of the floating-point tensors. Default: as in the file
  TORCH_ARG(std::optional<torch::ScalarType>, dtype) = std::nullopt;

  /// device of the tensors. Default: CPU
  TORCH_ARG(torch::Device, device) = torch::kCPU;

  /// leave the values in the file, which is mapped into memory, instead of
  /// copying them: only parts that are used take up memory. Changes to the
  /// tensors do not reach the file; the file must not be cut short while they
  /// live. Tensors that `dtype` or `device` change are still copied. Default:
  /// false
  TORCH_ARG(bool, mmap) = false;

  /// read all values and compare their checksums, where the file has any.
  /// Default: true
  TORCH_ARG(bool, check) = true;
};

/// Reads the names and tensors of a file, in its order: Python's
/// `torch.load(path, weights_only=True)` and safetensors' `load_file` in one.
///
/// Reads, by content and not by name, all formats that `load_weights` reads:
/// `torch.save` files (in a checkpoint, its state dict or the part that
/// `prefix` names), TorchScript and C++ archives, `torch.export` archives,
/// safetensors files and the index of a model in several of them. Nothing in a
/// file is ever run. A tensor that has several names in the file is one tensor
/// in the result; different tensors do not share memory unless `mmap` is set.
/// Values that are not tensors are left out.
///
/// Throws c10::Error that says what is wrong with the file, that nothing is
/// below the prefix, which tensor cannot be read (sparse, quantized), or that
/// views of the same bytes would take many times the file's memory.
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
