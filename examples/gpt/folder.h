#pragma once

#include <c10/util/Exception.h>

#include <torch/ordered_dict.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

namespace gpt {

/// Returns `config.json` of a folder; of a model of text and images the part of
/// the text.
nlohmann::json read_config(const std::string& folder);

/// Returns a field of a configuration, or `otherwise` if it is absent or null.
/// Throws c10::Error that names a field of another type.
template <typename T>
T field(
    const nlohmann::json& config,
    const std::string& name,
    const T& otherwise) {
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) {
    return otherwise;
  }
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception& error) {
    C10_THROW_ERROR(Error, c10::str("config.json: ", name, ": ", error.what()));
  }
}

/// Returns a field that must be there.
template <typename T>
T field(const nlohmann::json& config, const std::string& name) {
  const auto found = config.find(name);
  TORCH_CHECK(
      found != config.end() && !found->is_null(),
      "config.json: expected a field ",
      name);
  return field<T>(config, name, T());
}

/// Returns the tokens that end a text: `eos_token_id` of
/// `generation_config.json` or `config.json`.
std::vector<int64_t> read_stop_tokens(const std::string& folder);

/// Returns whether the model's tokens are bytes, as `gpt train` has them.
bool has_bytes_as_tokens(const std::string& folder);

/// Writes a small text file, complete or not at all.
void write_text(const std::string& path, const std::string& text);

/// The tensors of a folder, and which of them the model has taken.
class FolderWeights {
 public:
  /// Reads the folder's safetensors or PyTorch files, sharded too. Values stay
  /// in the files until they are copied.
  explicit FolderWeights(const std::string& folder);

  /// Returns what comes before `name` in the name that ends with it:
  /// "transformer." for "wte.weight". Throws c10::Error if there is none.
  std::string prefix_of(const std::string& name) const;

  /// Returns the shape of a tensor. Throws c10::Error if there is none.
  std::vector<int64_t> sizes(const std::string& name) const;

  /// Copies a tensor, or its transpose, into a parameter.
  /// Throws c10::Error if there is none, or its shape is another.
  void copy(
      const std::string& name,
      torch::Tensor parameter,
      bool transposed = false);

  /// Marks all tensors below a path as taken: our library loads attention.
  void take_all(const std::string& path);

  /// Throws c10::Error that names the tensors below `path` that nothing took.
  void check_all_taken(const std::string& path) const;

 private:
  const torch::Tensor& get(const std::string& name) const;

  std::string folder_;
  torch::OrderedDict<std::string, torch::Tensor> tensors_;
  std::unordered_set<std::string> taken_;
};

} // namespace gpt
