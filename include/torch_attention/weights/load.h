#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/weights/layout.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention {

/// How `load_weights` treats the causal masks in the file (buffers named
/// `mask`).
enum class MaskPolicy {
  /// The file must have the mask, equal to the module's. It may be absent if
  /// the layout has no masks, as GPT-2's.
  kEqual,
  /// The file may lack the mask; a mask in the file must equal the module's.
  kOptional,
  /// The file's mask is not read: it may have another context_length.
  kIgnore,
};

/// The part of a tensor that a module holds, such as one process's share of the
/// heads: `size` rows or columns from `start` on.
struct TORCH_ATTENTION_API WeightShard {
  /// Its key in the module's state dict.
  std::string key;
  /// The dimension that is split.
  int64_t dimension = 0;
  int64_t start = 0;
  int64_t size = 0;
  /// The size of the whole tensor in that dimension.
  int64_t total = 0;
};

/// Options for `load_weights`.
///
/// Example:
/// ```
/// load_weights(*attention, "gpt.pt",
/// LoadOptions().prefix("trf_blocks.3.att"));
/// ```
struct TORCH_ATTENTION_API LoadOptions {
  /// refuse missing and unexpected keys, as Python's `load_state_dict` does.
  /// Wrong shapes are refused in any case. Default: true
  TORCH_ARG(bool, strict) = true;

  /// dotted path of the module inside the file; nothing outside of it is read.
  /// Default: the file's state dict
  TORCH_ARG(std::string, prefix) = "";

  /// requirement for the file's masks. Default: MaskPolicy::kEqual
  TORCH_ARG(MaskPolicy, mask) = MaskPolicy::kEqual;

  /// how the file names and stores the weights.
  /// Default: WeightLayout::automatic(), found from keys and shapes
  TORCH_ARG(WeightLayout, layout) = WeightLayout::automatic();

  /// device to which the module is moved. Default: the module is not moved
  TORCH_ARG(std::optional<torch::Device>, device) = std::nullopt;

  /// dtype of the module's floating-point tensors. Default: unchanged
  TORCH_ARG(std::optional<torch::ScalarType>, dtype) = std::nullopt;

  /// folder of a LoRA adapter that PEFT saved: each weight W that it changes is
  /// W + B A * scale, computed in float32. Default: none
  TORCH_ARG(std::string, adapter) = "";

  /// compute the values of weights that are stored quantized (GGUF, FP8, GPTQ,
  /// AWQ, compressed-tensors, bitsandbytes, torchao), one tensor at a time.
  /// Without it they are refused. Default: true
  TORCH_ARG(bool, dequantize) = true;

  /// tensors of which the module holds only a part while the file has the
  /// whole; only that part is read. `distributed::weight_shards` returns them
  /// for a process. Default: none
  TORCH_ARG(std::vector<WeightShard>, shards) = {};
};

/// The result of `load_weights`.
struct TORCH_ATTENTION_API LoadReport {
  /// A tensor that was copied into the module.
  struct Tensor {
    /// Its key in the module's state dict.
    std::string key;
    /// Its shape in the module.
    std::vector<int64_t> shape;
    /// Its dtype in the file.
    torch::ScalarType file_dtype;
    /// Its dtype in the module, to which it was converted.
    torch::ScalarType module_dtype;
    /// Its full keys in the file, with the prefix.
    std::vector<std::string> file_keys;
    /// The form in which the file stores its values, such as "Q4_K" or "GPTQ of
    /// 4 bits"; empty if it stores a tensor of `file_dtype`.
    std::string stored_as = {};
  };

  /// The file; for a folder, the file chosen in it.
  std::string path;
  /// The format, for example "TorchScript archive".
  std::string format;
  /// The layout of the weights in the file, for example "gpt2".
  std::string layout;
  /// The tensors that were copied, in the module's order.
  std::vector<Tensor> loaded;
  /// Keys of the module that were set to zeros, because the layout has no such
  /// tensor.
  std::vector<std::string> zeros;
  /// Keys of the module that kept their values.
  std::vector<std::string> missing;
  /// Keys of the file that were not used.
  std::vector<std::string> unexpected;

  /// Sentences about skipped objects, anywhere in the file: objects of classes
  /// that tensors do not need, and extra states, such as '"config" is an object
  /// of the class "__main__.Config"'. Nothing in them is loaded or run.
  std::vector<std::string> passed_over;

  /// Sentences about what is ambiguous: keys and shapes that also fit another
  /// layout.
  std::vector<std::string> remarks;
};

/// Prints the report as a table.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    const LoadReport& report);

/// Copies the tensors of a file into the parameters and buffers of `module`. If
/// an error occurs, the module does not change.
///
/// Recognises by content, not by name: `torch.save` files (a state dict, or a
/// checkpoint that holds one), TorchScript archives, archives of C++
/// `torch::save`, `torch.export` archives (.pt2), safetensors files and the
/// index of a model in several of them, GGUF files, and the folders of
/// distributed checkpoints. Never runs code from a file; verifies
/// checksums if the format has them. The file is mapped into memory, and only
/// needed parts are read. `path` may also be a folder with `model.safetensors`,
/// `model.safetensors.index.json`, `pytorch_model.bin`,
/// `pytorch_model.bin.index.json` (the first of these is taken), or one file of
/// weights with another name.
///
/// If memory runs out, throws c10::Error, or std::bad_alloc if there is not
/// enough left for a message; the module does not change.
///
/// Throws c10::Error if the file is invalid; or if keys are missing, unexpected
/// or have other shapes, and then lists them in the words of Python's
/// `load_state_dict`.
///
/// Example:
/// ```
/// MultiHeadAttention attention(768, 768, 1024, 0.1, 12);
/// std::cout << load_weights(*attention, "attention.pt");
/// ```
TORCH_ATTENTION_API LoadReport load_weights(
    torch::nn::Module& module,
    const std::string& path,
    const LoadOptions& options = {});

} // namespace torch_attention
