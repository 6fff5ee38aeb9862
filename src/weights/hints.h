#pragma once

#include <weights/files/weight_file.h>
#include <weights/layouts/map.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::weights {

/// A tensor of the module that has another shape in the file.
struct Mismatch {
  std::string key;
  std::vector<int64_t> file_shape;
  std::vector<int64_t> module_shape;
};

/// The facts that are known when loading is refused.
struct Refusal {
  const files::WeightFile& file;
  const StateDict& targets;
  const layouts::Mapping& mapping;
  /// The keys of the module that are missing in the file.
  const std::vector<std::string>& missing;
  bool nothing_loaded = false;
};

/// Returns sentences about what the user may have meant, if keys are missing.
std::vector<std::string> key_hints(const Refusal& refusal);

/// Returns which sizes of the attention differ, if the shapes show it.
std::vector<std::string> size_hints(const std::vector<Mismatch>& mismatches);

} // namespace torch_attention::weights
