#pragma once

#include <weights/files/mapped_file.h>
#include <weights/files/weight_file.h>

#include <string>

namespace torch_attention::weights {

/// How the tensors of a quantized model are read.
enum class Quantized {
  /// One float32 tensor instead of integers and scales.
  kJoined,
  kAsStored,
};

struct ReadRules {
  Quantized quantized = Quantized::kJoined;
  /// The folder of an adapter that is merged; "" for none.
  std::string adapter = {};
};

/// Reads a file by its content, not its extension; for a folder, the file that
/// `find_weight_file` returns. Of a sharded model, opens only files with keys
/// that begin with `prefix`. Throws c10::Error if the file is invalid.
files::WeightFile read_weight_file(
    const std::string& path_or_folder,
    const std::string& prefix = "",
    const ReadRules& rules = {});

/// Reads the bytes of a whole file, by their content.
files::WeightFile read_weight_bytes(const files::Bytes& bytes);

} // namespace torch_attention::weights
