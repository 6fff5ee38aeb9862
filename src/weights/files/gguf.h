#pragma once

#include <weights/files/gguf_header.h>
#include <weights/files/mapped_file.h>
#include <weights/files/weight_file.h>

namespace torch_attention::weights::files {

/// Returns whether the bytes begin as a GGUF file.
bool is_gguf(const Bytes& file);

/// Reads what comes before the data. Throws c10::Error if it is invalid, or if
/// the file is one of several parts.
GgufHeader read_gguf_header(const Bytes& file);

/// Reads a GGUF file of llama.cpp, version 2 or 3, little-endian
/// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Quantised
/// tensors are in `WeightFile::stored`. The rows of queries and keys that
/// llama.cpp's converter has permuted, and norms that it has added 1 to, get
/// the order and the values of the model that it has read; tensors for which
/// this is not possible are unreadable. Throws c10::Error if the file is
/// invalid, or if it is one of several parts.
WeightFile read_gguf(const Bytes& file);

} // namespace torch_attention::weights::files
