#pragma once

#include <torch_attention/weights/layout.h>
#include <weights/layouts/rules.h>
#include <weights/state_dict.h>

#include <optional>
#include <string>
#include <vector>

// Which layout the tensors of a file or module are in.

namespace torch_attention {

/// The layout of the tensors at one scope.
struct Choice {
  /// None if no layout fits, or several do.
  std::optional<WeightLayout> layout;
  /// Those that fit equally well.
  std::vector<WeightLayout> ambiguous;
};

/// An attention module in a state dict.
struct Place {
  /// Its path, "" for the root.
  std::string scope;
  Choice choice;
  /// Places below, whose tensors this one has too: each of the heads is a
  /// whole `CausalAttention`.
  std::vector<Place> inner;
};

/// The built-in layouts that can be told from the keys.
const std::vector<WeightLayout>& layouts_to_find();

/// The layout that has the weights of query, key and value at `scope`, or if
/// there is none the one that has some of them. `wanted` are the shapes that
/// the module needs, which decide between layouts that fit else.
Choice find_layout(
    const StateDict& state,
    const std::string& scope,
    const Shapes* wanted = nullptr);

/// The attention modules of a state dict: the scopes at which a layout of
/// `layouts` has the weights of query, key and value, in the order of `state`.
std::vector<Place> find_places(
    const StateDict& state,
    const std::vector<WeightLayout>& layouts = layouts_to_find());

/// Whether the shapes can be those of one attention module.
bool are_consistent(const Shapes& shapes);

/// Whether two layouts are the same, name and rules.
bool are_same(const WeightLayout& a, const WeightLayout& b);

/// The keys at `scope` that the layout reads, sorted.
std::vector<std::string> keys_read(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout);

/// What `layout` calls canonical tensors in the file, for a message; empty if
/// it has none.
std::string names_in_file(
    const std::string& scope,
    const WeightLayout& layout,
    const std::vector<std::string>& canonical_keys);

/// What `layout` looks for in a file: its weights of query, key and value, or
/// if it has none of these all of its tensors.
std::string names_looked_for(
    const std::string& scope,
    const WeightLayout& layout);

/// Whether a file has any of the weights of query, key and value in `layout`;
/// or, if the layout is about other tensors only, any of these.
bool has_layout(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout);

/// The keys that a layout's `file_keys` stand for at `scope`.
std::vector<std::string> keys_at(
    const StateDict& state,
    const std::string& scope,
    const std::vector<std::string>& file_keys);

/// "the root", or the path in quotes.
std::string scope_text(const std::string& scope);

/// Says that several layouts fit, and what to do.
std::string ambiguous_text(
    const std::string& scope,
    const std::vector<WeightLayout>& layouts);

std::vector<std::string> names_of(const std::vector<WeightLayout>& layouts);

} // namespace torch_attention
