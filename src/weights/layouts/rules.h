#pragma once

#include <torch_attention/weights/layout.h>
#include <weights/state_dict.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

// What the rules of a layout do with tensors. Nothing is copied: the results
// are views.

namespace torch_attention {

/// A tensor, or some rows of one.
struct Piece {
  /// The keys of the file that it comes from. None for zeros that no file has.
  std::vector<std::string> keys;
  torch::Tensor tensor;
};

/// A tensor in pieces.
struct Joined {
  /// Joined along `dimension` they are the tensor.
  std::vector<Piece> pieces;
  /// Other tensors of the file that have to equal it.
  std::vector<Piece> copies;
  /// 0 for canonical tensors, 1 for what a file has transposed.
  int64_t dimension = 0;
};

/// The canonical key of the causal mask.
inline constexpr const char* kMaskKey = "mask";

/// Shapes by canonical key.
using Shapes = std::map<std::string, std::vector<int64_t>>;

/// The canonical tensors of one attention module of a file.
struct Canonical {
  std::map<std::string, Joined> tensors;
  /// Canonical keys whose tensors are there, but cannot be had.
  std::set<std::string> failed;
  /// Why not.
  std::vector<std::string> problems;
};

/// Tensors of a module or a file, made of canonical ones.
struct Written {
  std::vector<std::pair<std::string, Joined>> tensors;
  /// Why it cannot be done.
  std::string problem;
};

/// "trf_blocks.3.att.mask" for "trf_blocks.3.att" and "mask".
std::string key_at(const std::string& scope, const std::string& key);

/// The keys of `state` that a rule's file key stands for at `scope`: itself,
/// or the heads 0, 1, ... as far as there are. Empty if there is none.
std::vector<std::string> keys_of(
    const StateDict& state,
    const std::string& scope,
    const std::string& file_key);

/// The keys that it stands for with `num_heads` heads.
std::vector<std::string> keys_for_heads(
    const std::string& scope,
    const std::string& file_key,
    int64_t num_heads);

bool lists_heads(const std::string& file_key);

/// Reads a file's tensors by the rules of `layout`. `wanted` has the canonical
/// tensors that are needed and their shapes, which say where to split; without
/// it all are read, and split into equal parts.
Canonical to_canonical(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout,
    const Shapes* wanted = nullptr);

/// The tensors `keys` of `rule` out of the canonical ones, which are all there.
/// `rows` has how many rows each is to have, as far as that is known.
Written from_canonical(
    const Canonical& canonical,
    const WeightLayout::Rule& rule,
    const std::vector<std::string>& keys,
    const std::vector<std::optional<int64_t>>& rows);

/// The shape of the joined pieces.
std::vector<int64_t> shape_of(const Joined& joined);

/// The shapes of all tensors.
Shapes shapes_of(const Canonical& canonical);

/// Whether pieces can be joined along dimension 0.
bool can_join(const std::vector<Piece>& pieces);

/// Zeros that take no memory and come from no file.
Joined joined_zeros(
    torch::IntArrayRef shape,
    const torch::TensorOptions& options);

} // namespace torch_attention
