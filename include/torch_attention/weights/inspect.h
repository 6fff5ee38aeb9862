#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace torch_attention {

/// Options for `inspect_weights`.
///
/// Example:
/// ```
/// inspect_weights("checkpoint.pt", InspectOptions().prefix("model"));
/// ```
struct TORCH_ATTENTION_API InspectOptions {
  /// dotted path inside the file; only names below it are listed, with the path
  /// removed. Default: the whole file
  TORCH_ARG(std::string, prefix) = "";

  /// read all values and verify their checksums, if the file has any; without
  /// `prefix` also those of code and other records of the file. Default: false
  TORCH_ARG(bool, check) = false;
};

/// The contents of a file of weights.
struct TORCH_ATTENTION_API WeightsInfo {
  /// A tensor of the file.
  struct Tensor {
    /// Its name, a dotted path.
    std::string key;
    std::vector<int64_t> shape;
    /// Its dtype as it is loaded.
    torch::ScalarType dtype;
    /// Bytes of the tensor's elements, as stored; an expanded tensor takes
    /// fewer in the file.
    uint64_t bytes;
    /// The form in which the file stores its values, such as "Q4_K" or "GPTQ of
    /// 4 bits"; empty if it stores a tensor of `dtype`.
    std::string stored_as = {};
  };

  /// A value that cannot be read.
  struct Unreadable {
    std::string key;
    /// The reason, for example "is a sparse tensor".
    std::string reason;
  };

  /// An attention module, found by the names and shapes of its tensors.
  struct TORCH_ATTENTION_API Attention {
    /// Its path, for `LoadOptions::prefix`; "" if the file is the module.
    std::string path;
    /// Names of the layouts that fit: one, or several if names and shapes are
    /// ambiguous. With several, the fields below are empty.
    std::vector<std::string> layouts;
    /// A sentence if the keys and shapes also fit another layout and no file
    /// next to this one decides; otherwise empty.
    std::string remark;

    /// Shapes of the tensors by canonical key (see `WeightLayout`).
    std::map<std::string, std::vector<int64_t>> shapes;
    /// The numbers of query heads that fit the shapes, ascending; exactly one
    /// if the file lists its heads. Weights alone reveal no more.
    std::vector<int64_t> possible_num_heads;
    /// Whether the file lists its heads.
    bool lists_heads = false;
    /// The first 20 names below the path that are not part of the layout:
    /// `load_weights` refuses them unless `strict` is off.
    std::vector<std::string> unknown_keys;

    /// Returns the input size, the number of columns of the query weight; 0 if
    /// unknown. The sizes below are 0 if unknown, too.
    int64_t d_in() const;
    /// Returns the number of rows of the query weight: heads times head_dim.
    int64_t d_out() const;
    /// Returns the number of rows of the causal mask, if there is one.
    int64_t context_length() const;
    /// Returns the number of key heads for `num_heads` query heads, one of
    /// `possible_num_heads`.
    int64_t num_kv_heads(int64_t num_heads) const;
    /// Returns whether the queries have a bias.
    bool qkv_bias() const;
    /// Returns whether there is an output projection.
    bool out_proj() const;
  };

  /// The file; for a folder, the file chosen in it.
  std::string path;
  /// The format, for example "safetensors file".
  std::string format;
  /// Path of the state dict among other values of the file, such as
  /// "model_state_dict"; empty if the file is the state dict itself.
  std::string state_dict;
  /// Sentences about why `load_weights` needs more options for this file: it
  /// has several state dicts, or none, or attention whose names do not
  /// determine the order of rows.
  std::vector<std::string> remarks;
  /// The tensors, in the file's order.
  std::vector<Tensor> tensors;
  /// Names of values that are not tensors.
  std::vector<std::string> other_values;
  std::vector<Unreadable> unreadable;
  /// Objects, anywhere in the file, of classes that tensors do not need. They
  /// are skipped with their contents; the reason describes them.
  std::vector<Unreadable> passed_over;
  std::vector<Attention> attention;
};

/// Lists the contents of a file of weights: its tensors with their paths, and
/// its attention modules with their layouts and sizes. Reads all formats and
/// folders that `load_weights` reads, with the same safety. Reads no values
/// unless `check` is set.
///
/// Throws c10::Error if the file is invalid or nothing is below the prefix.
///
/// Example:
/// ```
/// for (const auto& found : inspect_weights("gpt2.safetensors").attention) {
///   std::cout << found.path << ": d_in " << found.d_in() << "\n";
/// }
/// ```
TORCH_ATTENTION_API WeightsInfo
inspect_weights(const std::string& path, const InspectOptions& options = {});

} // namespace torch_attention
