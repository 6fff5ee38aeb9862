#include "folder.h"

#include <torch/utils.h>

#include <torch_attention/weights/read.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace gpt {

namespace {

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  TORCH_CHECK(file, "Expected a file ", path);
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    C10_THROW_ERROR(Error, c10::str(path, ": ", error.what()));
  }
}

bool starts_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() &&
      text.compare(text.size() - end.size(), end.size(), end) == 0;
}

} // namespace

nlohmann::json read_config(const std::string& folder) {
  auto config = read_json(folder + "/config.json");
  return config.contains("text_config") ? config["text_config"] : config;
}

std::vector<int64_t> read_stop_tokens(const std::string& folder) {
  auto config = read_config(folder);
  const auto path = folder + "/generation_config.json";
  if (std::ifstream(path)) {
    config.update(read_json(path));
  }
  const auto found = config.find("eos_token_id");
  if (found == config.end() || found->is_null()) {
    return {};
  }
  return found->is_array()
      ? field<std::vector<int64_t>>(config, "eos_token_id")
      : std::vector<int64_t>{field<int64_t>(config, "eos_token_id")};
}

bool has_bytes_as_tokens(const std::string& folder) {
  return field<std::string>(read_config(folder), "tokens", "") == "bytes";
}

void write_text(const std::string& path, const std::string& text) {
  const auto part = path + ".part";
  std::ofstream file(part, std::ios::binary);
  file << text;
  file.close();
  TORCH_CHECK(file, "Cannot write ", part);
  TORCH_CHECK(
      std::rename(part.c_str(), path.c_str()) == 0, "Cannot write ", path);
}

FolderWeights::FolderWeights(const std::string& folder)
    : folder_(folder),
      tensors_(torch_attention::read_weights(
          folder,
          torch_attention::ReadOptions().mmap(true).check(false))) {}

const torch::Tensor& FolderWeights::get(const std::string& name) const {
  const auto* found = tensors_.find(name);
  TORCH_CHECK(found, folder_, ": expected a tensor ", name);
  return *found;
}

std::vector<int64_t> FolderWeights::sizes(const std::string& name) const {
  return get(name).sizes().vec();
}

std::string FolderWeights::prefix_of(const std::string& name) const {
  for (const auto& key : tensors_.keys()) {
    if (key == name || ends_with(key, "." + name)) {
      return key.substr(0, key.size() - name.size());
    }
  }
  C10_THROW_ERROR(Error, c10::str(folder_, ": expected a tensor ", name));
}

void FolderWeights::copy(
    const std::string& name,
    torch::Tensor parameter,
    bool transposed) {
  const auto& tensor = get(name);
  const auto value = transposed ? tensor.t() : tensor;
  TORCH_CHECK(
      value.sizes() == parameter.sizes(),
      folder_,
      ": expected ",
      name,
      " of shape ",
      transposed ? parameter.t().sizes() : parameter.sizes(),
      " but got ",
      tensor.sizes());
  const torch::NoGradGuard no_gradients;
  parameter.copy_(value);
  taken_.insert(name);
}

void FolderWeights::take_all(const std::string& path) {
  for (const auto& key : tensors_.keys()) {
    if (starts_with(key, path + ".")) {
      taken_.insert(key);
    }
  }
}

void FolderWeights::check_all_taken(const std::string& path) const {
  for (const auto& key : tensors_.keys()) {
    TORCH_CHECK(
        !starts_with(key, path) || taken_.count(key) > 0,
        folder_,
        ": the model has no place for ",
        key);
  }
}

} // namespace gpt
