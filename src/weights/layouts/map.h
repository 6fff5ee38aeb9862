#pragma once

#include <torch_attention/weights/layout.h>
#include <weights/layouts/find.h>
#include <weights/layouts/rules.h>
#include <weights/state_dict.h>

#include <string>
#include <utility>
#include <vector>

namespace torch_attention::weights::layouts {

/// How a file's tensors become a module's.
struct Mapping {
  /// The layouts of the file's attention modules, joined by ", "; empty if the
  /// file or the module has no attention.
  std::string layout;
  /// The source of each tensor of the module, by its key and in the module's
  /// order. Empty if the file does not have the requested layout.
  std::vector<std::pair<std::string, Source>> sources;
  /// Errors, as sentences, each once.
  std::vector<std::string> problems;
  /// Sentences about ambiguous layouts, each once.
  std::vector<std::string> remarks;
  /// Keys of the file that are neither read nor ignored.
  std::vector<std::string> unused;
  /// The layouts of attention in the file, with its paths.
  std::vector<std::pair<std::string, WeightLayout>> places;

  /// Returns whether a layout leaves a key of the file to others on purpose.
  bool leaves(const std::string& key) const;
};

/// Maps the tensors of `file` to those of `module`. Attention modules have the
/// same path in both; all other tensors are mapped by their keys. `decide` may
/// replace a layout that was recognised.
Mapping map_to_module(
    const StateDict& file,
    const StateDict& module,
    const WeightLayout& layout,
    const Decide& decide = {});

} // namespace torch_attention::weights::layouts
