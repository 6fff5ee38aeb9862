#pragma once

#include <torch_attention/weights/layout.h>
#include <weights/layouts/rules.h>
#include <weights/state_dict.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

// Finds the layout that the tensors of a file or module are in.

namespace torch_attention::weights::layouts {

/// An attention module in a state dict.
struct Attention {
  /// Its path, "" for the root.
  std::string scope;
  /// The layouts that fit: one, or several if keys and shapes do not decide.
  std::vector<WeightLayout> layouts;
  /// Modules below, whose tensors this one has too: each of the heads is a
  /// whole `CausalAttention`.
  std::vector<Attention> inner;
};

/// The facts that are known of an attention beside its keys and shapes.
struct Decision {
  WeightLayout layout;
  /// A sentence, if keys and shapes are also those of another layout.
  std::string remark;
};

/// Decides whether the attention at `scope` is in the layout that was found, or
/// in another with the same keys and shapes. Throws c10::Error if it is in
/// neither.
using Decide = std::function<
    Decision(const std::string& scope, const WeightLayout& found)>;

/// Returns the built-in layouts that can be told from the keys.
const std::vector<WeightLayout>& layouts_to_find();

/// Returns the layouts that have the weights of query, key and value at
/// `scope`: none, one, or several if nothing decides between them. If there is
/// none, the one that has some of these weights. `wanted` are the shapes that
/// the module needs, which decide between layouts that fit otherwise.
std::vector<WeightLayout> layouts_at(
    const StateDict& state,
    const std::string& scope,
    const Shapes* wanted = nullptr);

/// Returns the attention modules of a state dict: the scopes at which a layout
/// of `layouts` has the weights of query, key and value, in the order of
/// `state`.
std::vector<Attention> find_attention(
    const StateDict& state,
    const std::vector<WeightLayout>& layouts = layouts_to_find());

/// Returns whether the shapes can be those of one attention module.
bool are_consistent(const Shapes& shapes);

/// Returns whether two layouts are the same, name and rules.
bool are_same(const WeightLayout& a, const WeightLayout& b);

/// Returns the number of heads that `layout` lists at `scope`; none if it lists
/// no heads.
std::optional<int64_t> heads_of(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout);

/// Returns the keys at `scope` that the layout reads, sorted.
std::vector<std::string> keys_read(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout);

/// Returns what `layout` calls canonical tensors in the file, for a message;
/// empty if it has none.
std::string names_in_file(
    const std::string& scope,
    const WeightLayout& layout,
    const std::vector<std::string>& canonical_keys);

/// Returns what `layout` looks for in a file: its weights of query, key and
/// value, or if it has none of these all of its tensors.
std::string names_looked_for(
    const std::string& scope,
    const WeightLayout& layout);

/// Returns whether a file has any of the weights of query, key and value in
/// `layout`; or, if the layout is about other tensors only, any of these.
bool has_layout(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout);

/// Returns the keys that a layout's `file_keys` stand for at `scope`.
std::vector<std::string> keys_at(
    const StateDict& state,
    const std::string& scope,
    const std::vector<std::string>& file_keys);

/// Returns "the root", or the path in quotes.
std::string scope_text(const std::string& scope);

/// Says that several layouts fit, and what to do.
std::string ambiguous_text(
    const std::string& scope,
    const std::vector<WeightLayout>& layouts);

std::vector<std::string> names_of(const std::vector<WeightLayout>& layouts);

} // namespace torch_attention::weights::layouts
