#pragma once

#include <weights/pretrained/families.h>

#include <optional>
#include <string>
#include <vector>

// Where the attention of a layer is in a file.

namespace torch_attention::weights::pretrained {

/// Where a part of a model is in a file.
struct Where {
  PretrainedPart part = PretrainedPart::kAuto;
  /// A substring and the beginning of its paths.
  std::string within = {};
  std::string root = {};
};

/// Returns the path that ends with `path` in a file with these keys, if there
/// is one. Throws c10::Error if there are several.
std::optional<std::string> find_path(
    const std::vector<std::string>& keys,
    const std::string& path,
    const Where& where,
    const std::string& file);

/// Throws c10::Error, which names the paths of attention in the file.
[[noreturn]] void throw_no_path(
    const std::vector<std::string>& keys,
    const std::string& path,
    const std::string& file);

/// Returns the full path and the layout of the attention in a file with these
/// keys.
Place find_place(
    const std::vector<std::string>& keys,
    const DescribedAttention& described,
    const std::string& file);

} // namespace torch_attention::weights::pretrained
