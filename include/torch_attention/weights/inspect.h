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
  /// dotted path inside the file; only what is below it is looked at, and the
  /// names are without it. Default: the whole file
  TORCH_ARG(std::string, prefix) = "";

  /// read all values and compare their checksums, where the file has any.
  /// Default: false
  TORCH_ARG(bool, check) = false;
};

/// What a file of weights holds.
struct TORCH_ATTENTION_API WeightsInfo {
  /// A tensor of the file.
  struct Tensor {
    /// Its name, a dotted path.
    std::string key;
    std::vector<int64_t> shape;
    torch::ScalarType dtype;
    /// Bytes of the elements that it shows; an expanded tensor's are fewer in
    /// the file.
    uint64_t bytes;
  };

  /// A tensor that cannot be read.
  struct Unreadable {
    std::string key;
    /// "is a sparse tensor", for example.
    std::string reason;
  };

  /// An attention module, found by the names and shapes of its tensors.
  struct TORCH_ATTENTION_API Attention {
    /// Its path, for `LoadOptions::prefix`; "" if the file is the module.
    std::string path;
    /// Names of the layouts that fit: one, or several if names and shapes do
    /// not decide. Nothing that follows is known then.
    std::vector<std::string> layouts;
    /// Shapes of the tensors by canonical key (see `WeightLayout`).
    std::map<std::string, std::vector<int64_t>> shapes;
    /// The numbers of query heads that fit the shapes, ascending; one if the
    /// file lists its heads. Weights do not show more.
    std::vector<int64_t> possible_num_heads;
    /// Whether the file lists its heads.
    bool lists_heads = false;
    /// Names below the path that the layout does not know, the first 20:
    /// `load_weights` refuses them unless `strict` is off.
    std::vector<std::string> unknown_keys;

    /// Size of the input: columns of the queries' weight. 0 if not known, as
    /// the sizes that follow.
    int64_t d_in() const;
    /// Rows of the queries' weight: heads times head_dim.
    int64_t d_out() const;
    /// Rows of the causal mask, if there is one.
    int64_t context_length() const;
    /// Key heads where there are `num_heads` query heads, one of
    /// `possible_num_heads`.
    int64_t num_kv_heads(int64_t num_heads) const;
    /// Returns whether the queries have a bias.
    bool qkv_bias() const;
    /// Returns whether there is an output projection.
    bool out_proj() const;
  };

  /// The file; of a folder the one that was taken.
  std::string path;
  /// What the file is, for example "safetensors file".
  std::string format;
  /// Path of the state dict among other things that the file holds, such as
  /// "model_state_dict"; empty if the file is the state dict.
  std::string state_dict;
  /// What keeps `load_weights` from reading the file without a prefix: it has
  /// several state dicts, or none; in sentences.
  std::vector<std::string> remarks;
  /// The tensors, in the file's order.
  std::vector<Tensor> tensors;
  /// Names of values that are no tensors.
  std::vector<std::string> other_values;
  std::vector<Unreadable> unreadable;
  std::vector<Attention> attention;
};

/// Looks at a file of weights: which tensors it has, and under which paths,
/// in which layouts and sizes there is attention. Reads all formats and folders
/// that `load_weights` reads, with the same safety; values only if asked to.
///
/// Throws c10::Error that says what is wrong with the file, or that nothing
/// lies below the prefix.
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
