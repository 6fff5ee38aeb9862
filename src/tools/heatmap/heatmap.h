#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace torch_attention::tools {

/// The options of `heatmap`.
struct HeatmapOptions {
  /// A folder that `save_pretrained` wrote; with `input` also a file of
  /// weights.
  std::string path;
  /// A file that ends with .html or .svg.
  std::string out;
  /// "all", or numbers and ranges: "0,2-4".
  std::string layers = "all";
  std::string heads = "all";

  /// One of these four says on what the attention is computed: a text, a file
  /// of a text, the tokens as "101,7,102", or a file with what enters the
  /// attention of one layer, (T, C) or (1, T, C).
  std::optional<std::string> tokens;
  std::optional<std::string> tokens_file;
  std::optional<std::string> ids;
  std::optional<std::string> input;

  /// Names of the tokens, with spaces between them, instead of the model's.
  std::optional<std::string> labels;

  /// With `input`: a file with the output of the encoder, (S, C) or (1, S, C),
  /// for the attention of the decoder to it; and names of its tokens.
  std::optional<std::string> context;
  std::optional<std::string> context_labels;

  /// For `input` without `context`: as in `LayerSource`.
  std::string part = "auto";
  std::string prefix;
  std::optional<int64_t> num_heads;
  bool unmasked = false;
};

/// Writes a page or picture of attention weights, (T, T) for each head or (T,
/// S) with a context, and prints what was written. Throws c10::Error, and
/// writes nothing, if the options do not fit each other or the model.
void heatmap(const HeatmapOptions& options, std::ostream& out);

} // namespace torch_attention::tools
