#pragma once

#include <torch_attention/weights/layout.h>
#include <weights/state_dict.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// From the tensors of a file to the canonical ones (see `WeightLayout`), and
// from these to the tensors of a module or another file. Both steps answer the
// same question, by key: which parts of which tensors of the file is this one
// made of? Nothing is copied: parts are views.

namespace torch_attention::weights::layouts {

/// A tensor of the file, or some rows of one.
struct Part {
  /// Its key in the file; "" for zeros, which no file has.
  std::string key;
  torch::Tensor tensor;
};

/// The fate of a tensor.
struct Source {
  enum class State {
    /// It is made of `parts`.
    kFound,
    /// The layout has no such tensor, which means zeros.
    kZeros,
    /// The file lacks it under the key `looked_for`.
    kMissing,
    /// It is a mask, and the file's layout has none.
    kWithoutMask,
    /// It is in the file, but cannot be had: `problem` says why.
    kRefused,
  };

  State state = State::kFound;
  /// Joined along `dimension` they are the tensor.
  std::vector<Part> parts;
  /// Other tensors of the file that have to equal this one: the masks of the
  /// other heads.
  std::vector<Part> copies;
  /// 0 for canonical tensors, 1 for what a file has transposed.
  int64_t dimension = 0;
  /// A key, or several in a text.
  std::string looked_for;
  /// A sentence. All the tensors that it speaks of have the same one.
  std::string problem;

  bool is_found() const {
    return state == State::kFound;
  }

  /// Returns the keys of the file that the parts come from, each once.
  std::vector<std::string> keys() const;
};

/// The canonical tensors of one attention module, found or refused.
using Sources = std::map<std::string, Source>;

/// Shapes by canonical key.
using Shapes = std::map<std::string, std::vector<int64_t>>;

/// The canonical key of the causal mask.
inline constexpr const char* kMaskKey = "mask";

/// "trf_blocks.3.att.mask" for "trf_blocks.3.att" and "mask".
std::string key_at(const std::string& scope, const std::string& key);

bool lists_heads(const std::string& file_key);

/// Returns the keys of `state` that a rule's file key stands for at `scope`:
/// itself, or the heads 0, 1, ... as far as there are. Empty if there is none.
std::vector<std::string> keys_of(
    const StateDict& state,
    const std::string& scope,
    const std::string& file_key);

/// Returns the keys that it stands for with `num_heads` heads.
std::vector<std::string> keys_for_heads(
    const std::string& scope,
    const std::string& file_key,
    int64_t num_heads);

/// Reads a file's tensors by the rules of `layout`. `wanted` has the canonical
/// tensors that are needed and their shapes, which say where to split; without
/// it all are read, and split into equal parts.
Sources to_canonical(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout,
    const Shapes* wanted = nullptr);

/// Makes the tensors `keys` of `rule` from the canonical ones, which are all
/// found. `rows` has how many rows each is to have, as far as that is known.
std::vector<Source> from_canonical(
    const Sources& canonical,
    const WeightLayout::Rule& rule,
    const std::vector<std::string>& keys,
    const std::vector<std::optional<int64_t>>& rows);

/// Returns the shapes of the tensors that are found.
Shapes shapes_of(const Sources& canonical);

/// Returns whether parts can be joined along dimension 0.
bool can_join(const std::vector<Part>& parts);

/// Returns zeros that take no memory and come from no file.
Source zeros_of(torch::IntArrayRef shape, const torch::TensorOptions& options);

} // namespace torch_attention::weights::layouts
