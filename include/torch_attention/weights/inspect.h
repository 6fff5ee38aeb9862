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
  /// dotted path inside the file; only names below it are listed, and without
  /// it. Default: the whole file
  TORCH_ARG(std::string, prefix) = "";

  /// read all values and compare their checksums, where the file has any, and
  /// without `prefix` those of code and whatever else is in the file.
  /// Default: false
  TORCH_ARG(bool, check) = false;
};

/// The contents of a file of weights.
struct TORCH_ATTENTION_API WeightsInfo {
  /// A tensor of the file.
  struct Tensor {
    /// Its name, a dotted path.
    std::string key;
    std::vector<int64_t> shape;
    torch::ScalarType dtype;
    /// Bytes of the elements that it shows; an expanded tensor has fewer in the
    /// file.
    uint64_t bytes;
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
    /// Names of the layouts that fit: one, or several if names and shapes do
    /// not decide. With several, nothing that follows is known.
    std::vector<std::string> layouts;
    /// A sentence, if the keys and shapes are also those of another layout, and
    /// nothing beside the file decides; otherwise empty.
    std::string remark;

    /// Shapes of the tensors by canonical key (see `WeightLayout`).
    std::map<std::string, std::vector<int64_t>> shapes;
    /// The numbers of query heads that fit the shapes, ascending; one if the
    /// file lists its heads. Weights do not show more.
    std::vector<int64_t> possible_num_heads;
    /// True if the file lists its heads.
    bool lists_heads = false;
    /// The first 20 names below the path that the layout does not know:
    /// `load_weights` refuses them unless `strict` is off.
    std::vector<std::string> unknown_keys;

    /// Returns the size of the input: the columns of the queries' weight. 0 if
    /// not known, like the sizes that follow.
    int64_t d_in() const;
    /// Returns the rows of the queries' weight: heads times head_dim.
    int64_t d_out() const;
    /// Returns the rows of the causal mask, if there is one.
    int64_t context_length() const;
    /// Returns the number of key heads for `num_heads` query heads, one of
    /// `possible_num_heads`.
    int64_t num_kv_heads(int64_t num_heads) const;
    /// Returns whether the queries have a bias.
    bool qkv_bias() const;
    /// Returns whether there is an output projection.
    bool out_proj() const;
  };

  /// The file; for a folder, the file that was chosen in it.
  std::string path;
  /// The kind of file, for example "safetensors file".
  std::string format;
  /// Path of the state dict among other values of the file, such as
  /// "model_state_dict"; empty if the file is the state dict.
  std::string state_dict;
  /// Sentences that say why `load_weights` cannot read the file without more
  /// options: it has several state dicts, or none, or attention whose order of
  /// rows its names do not tell.
  std::vector<std::string> remarks;
  /// The tensors, in the file's order.
  std::vector<Tensor> tensors;
  /// Names of values that are not tensors.
  std::vector<std::string> other_values;
  std::vector<Unreadable> unreadable;
  /// Objects of other classes than tensors need, wherever in the file they are:
  /// they are described and passed over, with what is in them. The reason says
  /// what they are.
  std::vector<Unreadable> passed_over;
  std::vector<Attention> attention;
};

/// Looks at a file of weights: which tensors it has under which paths, and
/// where there is attention, in which layouts and sizes. Reads all formats and
/// folders that `load_weights` reads, with the same safety. Reads values only
/// if asked to.
///
/// Throws c10::Error that says what is wrong with the file, or that nothing is
/// below the prefix.
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
