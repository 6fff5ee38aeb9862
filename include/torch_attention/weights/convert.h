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
  /// The tensors of each attention module under the target's names and in its
  /// shapes, at the place of the first of them; all other tensors as they were.
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  /// The keys of the source for which the target has no use: masks, and tensors
  /// that the source's layout ignores. Of a file also values that are no
  /// tensors.
  std::vector<std::string> left_out;

  /// Sentences that say what is not certain: keys and shapes that are also
  /// those of another layout.
  std::vector<std::string> remarks;
  /// The file that `convert_weights` read: in a folder, the one that was found.
  std::string path;
};

/// Rewrites every attention module among `tensors`, whose names are dotted
/// paths, from layout `source` to layout `target`. With `WeightLayout::book()`
/// as the target, the results have the canonical names and shapes (see
/// `WeightLayout`); with it as the source, `tensors` must have them.
///
/// Results that need no joining are views of `tensors`: they share memory.
///
/// `source` may be `automatic()`, which finds the layout of each module from
/// its names and shapes; `target` may not. `num_heads` is needed by targets
/// that list heads, unless the source lists them as well.
///
/// Throws c10::Error if there is no attention in layout `source`, several
/// layouts fit, the shapes are not those of one attention, or `target` cannot
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

  /// how the file that is read stores attention. Default:
  /// WeightLayout::automatic()
  TORCH_ARG(WeightLayout, source) = WeightLayout::automatic();

  /// how the file that is written stores attention. Default: as the other does
  TORCH_ARG(std::optional<WeightLayout>, target) = std::nullopt;

  /// dotted path inside the file; only tensors below it are taken, and their
  /// names are without it. Default: the file's state dict
  TORCH_ARG(std::string, prefix) = "";

  /// kind of file that is written. Default: FileFormat::kByExtension
  TORCH_ARG(FileFormat, format) = FileFormat::kByExtension;

  /// dtype of the floating-point tensors. Default: unchanged
  TORCH_ARG(std::optional<torch::ScalarType>, dtype) = std::nullopt;

  /// number of heads, for layouts that list them. Default: not known
  TORCH_ARG(std::optional<int64_t>, num_heads) = std::nullopt;

  /// function that is called after each tensor with the number of bytes that it
  /// is written in, and that of all tensors as `from` has them. Default: none
  TORCH_ARG(Progress, progress);
};

/// Reads the weights of `from` as `read_weights` does, and writes them to `to`
/// as `write_weights` does: in another format, layout or dtype. Where two
/// layouts have the same keys and shapes, a `config.json` beside `from`
/// decides. Values stay in the file, which is mapped into memory, until they
/// are written.
///
/// Returns what was written, in the file's dtypes, and what was left out, which
/// includes values that are not tensors. The tensors are `from`'s bytes: if it
/// is changed in place later, so are they. Throws c10::Error for what these
/// functions and `convert_layout` refuse, and if tensors repeat the file's
/// bytes so often that a small file would become a huge one.
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
