#pragma once

#include <torch_attention/weights/layout.h>
#include <weights/state_dict.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// Two steps: from the tensors of a file to the canonical ones (see
// `WeightLayout`), and from these to the tensors of a module or another file.
// Both list, for each key, the parts of the file's tensors that make up the
// tensor. Nothing is copied: parts are views.

namespace torch_attention::weights::layouts {

/// A tensor of the file, or some rows of it.
struct Part {
  /// Its key in the file; "" for zeros, which are not from a file.
  std::string key;
  torch::Tensor tensor;
};

/// Where a tensor comes from, or why it is missing.
struct Source {
  enum class State {
    /// Concatenate `parts`.
    kFound,
    /// The layout has no such tensor, so it is all zeros.
    kZeros,
    /// The file lacks it; its key there would be `looked_for`.
    kMissing,
    /// It is a mask, and the file's layout has no masks.
    kWithoutMask,
    /// The file has it, but it cannot be used for the reason in `problem`.
    kRefused,
  };

  State state = State::kFound;
  /// The parts to concatenate along `dimension`.
  std::vector<Part> parts;
  /// Other tensors of the file that have to equal this one, such as the masks
  /// of the other heads.
  std::vector<Part> copies;
  /// 0 for canonical tensors, 1 for tensors that the file stores transposed.
  int64_t dimension = 0;
  /// A key, or a text with several.
  std::string looked_for;
  /// A sentence, the same one for all the tensors that it concerns.
  std::string problem;

  bool is_found() const {
    return state == State::kFound;
  }

  /// Returns the keys of the parts in the file, each once.
  std::vector<std::string> keys() const;
};

/// The canonical tensors of an attention module, by canonical key.
using Sources = std::map<std::string, Source>;

/// Shapes by canonical key.
using Shapes = std::map<std::string, std::vector<int64_t>>;

/// The canonical key of the causal mask.
inline constexpr const char* kMaskKey = "mask";

/// Returns "trf_blocks.3.att.mask" for "trf_blocks.3.att" and "mask".
std::string key_at(const std::string& scope, const std::string& key);

bool lists_heads(const std::string& file_key);

/// Returns the keys of `state` that match a rule's file key at `scope`: the key
/// itself, or those of the heads 0, 1, ... that exist. Empty if there is none.
std::vector<std::string> keys_of(
    const StateDict& state,
    const std::string& scope,
    const std::string& file_key);

/// Returns the keys that a file key stands for if there are `num_heads` heads.
std::vector<std::string> keys_for_heads(
    const std::string& scope,
    const std::string& file_key,
    int64_t num_heads);

/// Reads a file's tensors by the rules of `layout`. `wanted` has the needed
/// canonical tensors with their shapes, which determine where to split. Without
/// it, all tensors are read and split into equal parts.
Sources to_canonical(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout,
    const Shapes* wanted = nullptr);

/// Makes the tensors `keys` of `rule` from the canonical ones, which must all
/// exist. `rows` has the wanted number of rows of each, if known.
std::vector<Source> from_canonical(
    const Sources& canonical,
    const WeightLayout::Rule& rule,
    const std::vector<std::string>& keys,
    const std::vector<std::optional<int64_t>>& rows);

/// Returns the shapes of the tensors that were found.
Shapes shapes_of(const Sources& canonical);

/// Returns whether parts can be concatenated along dimension 0.
bool can_join(const std::vector<Part>& parts);

/// Returns zeros of `shape` that take a single element of memory.
Source zeros_of(torch::IntArrayRef shape, const torch::TensorOptions& options);

} // namespace torch_attention::weights::layouts
