#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace torch_attention::tools {

/// The options of `embed`.
struct EmbedArguments {
  /// A folder of sentence-transformers or save_pretrained with an encoder.
  std::string folder;
  /// The texts, one a line; "-" for standard input.
  std::string file;
  /// A file for the tensor `vectors`, (B, C); empty to print.
  std::string output;
  /// Tokens that are computed at once.
  int64_t batch_tokens = 4096;
};

/// Makes a vector of each line of a file, as sentence-transformers does: with
/// the pooling and normalisation that the folder says, or else the mean of all
/// tokens. Writes them to a file, or prints each as a line of JSON.
///
/// Throws c10::Error if the model, its tokenizer or the file cannot be read.
void embed_lines(const EmbedArguments& arguments, std::ostream& out);

} // namespace torch_attention::tools
