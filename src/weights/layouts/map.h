#pragma once

#include <torch_attention/weights/layout.h>
#include <weights/layouts/find.h>
#include <weights/layouts/rules.h>
#include <weights/state_dict.h>

#include <string>
#include <utility>
#include <vector>

namespace torch_attention::weights::layouts {

/// Tells how a file's tensors become a module's.
struct Mapping {
  /// The layouts in which the file's attention was found, joined by ", ";
  /// empty if the file or the module has none.
  std::string layout;
  /// The fate of each tensor of the module, by its key and in its order. Empty
  /// if the layout that was asked for is nowhere in the file.
  std::vector<std::pair<std::string, Source>> sources;
  /// Obstacles, in sentences, each once.
  std::vector<std::string> problems;
  /// Doubts, in sentences, each once.
  std::vector<std::string> remarks;
  /// File keys that nothing reads and no layout ignores.
  std::vector<std::string> unused;
};

/// Maps the tensors of `file` to those of `module`. Attention modules have the
/// same path in both; all other tensors are mapped by their keys. `decide` has
/// the last word on a layout that was found.
Mapping map_to_module(
    const StateDict& file,
    const StateDict& module,
    const WeightLayout& layout,
    const Decide& decide = {});

} // namespace torch_attention::weights::layouts
