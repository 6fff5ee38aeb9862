#pragma once

#include <weights/files/weight_file.h>
#include <weights/layouts/map.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::weights {

/// A tensor of the module whose shape in the file is another one.
struct Mismatch {
  std::string key;
  std::vector<int64_t> file_shape;
  std::vector<int64_t> module_shape;
};

/// What is known when loading is refused.
struct Refusal {
  const files::WeightFile& file;
  const StateDict& targets;
  const layouts::Mapping& mapping;
  /// Keys of the module that the file does not have.
  const std::vector<std::string>& missing;
  bool nothing_loaded = false;
};

/// Says what the user may have meant when keys are missing, in sentences.
std::vector<std::string> key_hints(const Refusal& refusal);

/// Says which sizes of the attention differ, if the shapes tell; else nothing.
std::vector<std::string> size_hints(const std::vector<Mismatch>& mismatches);

} // namespace torch_attention::weights
