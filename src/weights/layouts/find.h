#pragma once

#include <torch_attention/weights/layout.h>
#include <weights/layouts/rules.h>
#include <weights/state_dict.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

// Recognises the layout of the tensors in a file or module.

namespace torch_attention::weights::layouts {

/// An attention module in a state dict.
struct Attention {
  /// Its path; "" for the root.
  std::string scope;
  /// The layouts that fit: one, or several if keys and shapes are ambiguous.
  std::vector<WeightLayout> layouts;
  /// Modules below this one that have some of its tensors, if each of its heads
  /// is a whole `CausalAttention`.
  std::vector<Attention> inner;
};

/// The layout of an attention module, chosen by more than its keys and shapes.
struct Decision {
  WeightLayout layout;
  /// A sentence, if the keys and shapes also fit another layout.
  std::string remark;
};

/// Decides whether the attention at `scope` has the layout that was recognised,
/// or another one with the same keys and shapes. Throws c10::Error if it has
/// neither.
using Decide = std::function<
    Decision(const std::string& scope, const WeightLayout& found)>;

/// Returns the built-in layouts that can be recognised by their keys.
const std::vector<WeightLayout>& layouts_to_find();

/// Returns the layouts that read the weights of query, key and value at
/// `scope`: one, or several if that is ambiguous. If there is none, returns the
/// layout that reads some of these weights, unless that is ambiguous. `wanted`
/// are the shapes that the module needs; they help to choose.
std::vector<WeightLayout> layouts_at(
    const StateDict& state,
    const std::string& scope,
    const Shapes* wanted = nullptr);

/// Returns the attention modules of a state dict: the scopes at which one of
/// `layouts` reads the weights of query, key and value, in the order of
/// `state`.
std::vector<Attention> find_attention(
    const StateDict& state,
    const std::vector<WeightLayout>& layouts = layouts_to_find());

/// Returns whether the shapes can belong to one attention module.
bool are_consistent(const Shapes& shapes);

/// Returns whether two layouts have the same name and rules.
bool are_same(const WeightLayout& a, const WeightLayout& b);

/// Returns the number of heads that `layout` lists at `scope`; none if it does
/// not list heads.
std::optional<int64_t> heads_of(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout);

/// Returns the keys at `scope` that the layout reads, sorted.
std::vector<std::string> keys_read(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout);

/// Returns the names of canonical tensors in the layout's file, for a message;
/// empty if it has no such tensors.
std::string names_in_file(
    const std::string& scope,
    const WeightLayout& layout,
    const std::vector<std::string>& canonical_keys);

/// Returns the names that `layout` looks for in a file: of the weights of
/// query, key and value, or of all its tensors if it has no rule for these.
std::string names_looked_for(
    const std::string& scope,
    const WeightLayout& layout);

/// Returns whether the file has any weight of query, key or value in `layout`;
/// if the layout has only rules for other tensors, any of these.
bool has_layout(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout);

/// Returns the keys of `state` for a layout's `file_keys` at `scope`.
std::vector<std::string> keys_at(
    const StateDict& state,
    const std::string& scope,
    const std::vector<std::string>& file_keys);

/// Returns "the root", or the path in quotes.
std::string scope_text(const std::string& scope);

/// Returns the message that several layouts fit, with advice.
std::string ambiguous_text(
    const std::string& scope,
    const std::vector<WeightLayout>& layouts);

std::vector<std::string> names_of(const std::vector<WeightLayout>& layouts);

} // namespace torch_attention::weights::layouts
