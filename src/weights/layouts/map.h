#pragma once

#include <torch_attention/weights/layout.h>
#include <weights/state_dict.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// From the tensors of a file to those of a module, or of another file, through
// the canonical ones (see `WeightLayout`). Nothing is copied: the results are
// views of the file's tensors.

namespace torch_attention {

/// Where one tensor of the module comes from.
struct Source {
  /// Joined along `dimension` they are the tensor. Empty for `zeros`.
  std::vector<torch::Tensor> parts;
  /// The file's keys that they come from, each once.
  std::vector<std::string> keys;
  /// The file has no such tensor, which means zeros there.
  bool zeros = false;
  /// Other tensors of the file that have to equal this one: the masks of the
  /// other heads.
  std::vector<std::pair<std::string, torch::Tensor>> copies;
  int64_t dimension = 0;
};

/// How a file's tensors become a module's.
struct Mapping {
  /// A tensor of the module that the file does not have.
  struct Missing {
    std::string key;
    /// What it would be called in the file: a key, or several in a text.
    std::string looked_for;
  };

  /// The layouts in which the file's attention was found, joined by ", ";
  /// empty if the file or the module has none.
  std::string layout;
  /// By module key, in the module's order.
  std::vector<std::pair<std::string, Source>> sources;
  /// Module keys that are in neither `sources`, `without_mask` nor `problems`.
  std::vector<Missing> missing;
  /// Masks of the module for which the file's layout has no tensor.
  std::vector<std::string> without_mask;
  /// File keys that nothing reads and no layout ignores.
  std::vector<std::string> unused;
  /// What cannot be done, in sentences.
  std::vector<std::string> problems;
};

/// Maps the tensors of `file` to those of `module`. Attention modules have the
/// same path in both; all other tensors are mapped by their keys.
Mapping map_to_module(
    const StateDict& file,
    const StateDict& module,
    const WeightLayout& layout);

/// A file in another layout.
struct Converted {
  StateDict tensors;
  /// Keys of the source for which the target has no use: masks and what the
  /// source's layout ignores.
  std::vector<std::string> left_out;
};

/// Rewrites every attention module of a file from layout `source`, which may be
/// automatic, to layout `target`. `num_heads` is needed for layouts that list
/// heads, unless the source lists them as well.
///
/// Throws c10::Error if there is no attention in `source`, or `target` cannot
/// hold it.
Converted convert_layout(
    const StateDict& from,
    const WeightLayout& source,
    const WeightLayout& target,
    std::optional<int64_t> num_heads = std::nullopt);

/// An attention module in a file.
struct Found {
  /// Its path, "" for the root.
  std::string scope;
  /// Its layout; empty if several fit.
  std::string layout;
  /// The layouts that fit, if there are several.
  std::vector<std::string> ambiguous;
  /// The number of heads, if the layout lists them.
  std::optional<int64_t> num_heads;
  /// The canonical tensors' shapes.
  std::map<std::string, std::vector<int64_t>> shapes;
  /// Keys below its path that the layout does not know, the first 20: loading
  /// refuses them.
  std::vector<std::string> unknown;
};

/// The attention modules of a file, in its order.
std::vector<Found> find_layouts(const StateDict& file);

} // namespace torch_attention
