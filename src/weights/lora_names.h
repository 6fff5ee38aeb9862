#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::weights {

/// Finds the modules of the trained model in a file, which may have them below
/// another path: "model.layers.0" is "layers.0" in a model without a head.
class LoraNames {
 public:
  explicit LoraNames(const std::vector<std::string>& keys)
      : keys_(keys.begin(), keys.end()) {}

  /// Returns the path of a module in the file; none if it is not there. Throws
  /// c10::Error if there are several, or if its beginning differs in another
  /// way than that of the modules before.
  std::optional<std::string> find(const std::string& path);

 private:
  bool has(const std::string& path) const;
  /// Returns the path, or its end without parts at its beginning.
  std::optional<std::string> find_shorter(const std::string& path) const;
  /// Returns a path that ends with this one.
  std::optional<std::string> find_longer(const std::string& path) const;

  std::set<std::string> keys_;
  /// The beginnings of paths in the adapter and in the file, where they differ.
  std::optional<std::pair<std::string, std::string>> difference_;
};

} // namespace torch_attention::weights
