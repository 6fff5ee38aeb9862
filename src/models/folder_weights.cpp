#include <models/folder_weights.h>

#include <affixes.h>
#include <check.h>
#include <format_text.h>
#include <models/gguf_names.h>
#include <models/model_config.h>
#include <torch_attention/weights/gguf.h>
#include <torch_attention/weights/inspect.h>
#include <torch_attention/weights/read.h>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <fmt/ranges.h>

namespace torch_attention::models {

namespace {

/// Returns the name that older files give to a parameter of a layer norm.
std::string older_name(const std::string& name) {
  const std::string weight = ".weight";
  return ends_with(name, weight)
      ? name.substr(0, name.size() - weight.size()) + ".gamma"
      : name.substr(0, name.rfind('.')) + ".beta";
}

} // namespace

FolderWeights::FolderWeights(const std::string& folder) : folder_(folder) {
  if (is_gguf(folder)) {
    list_gguf();
    return;
  }
  tensors_ = read_weights(
      folder, ReadOptions().mmap(true).check(false).dequantize(true));
}

void FolderWeights::list_gguf() {
  const auto type =
      read_model_config(folder_).get("model_type").as_text().value_or("");
  const auto file = inspect_weights(folder_);
  for (const auto& [key, reason] : file.unreadable) {
    TORCH_ATTENTION_CHECK(false, "\"{}\" of \"{}\" {}", key, folder_, reason);
  }
  for (const auto& tensor : file.tensors) {
    const auto [name, transposed] = name_of_gguf_tensor(type, tensor.key);
    if (name.empty()) {
      continue;
    }
    const auto listed = at::empty(
        tensor.shape, at::TensorOptions(tensor.dtype).device(torch::kMeta));
    TORCH_ATTENTION_CHECK(
        !transposed || listed.dim() == 2,
        "expected a matrix \"{}\" in \"{}\", but got the shape ({})",
        tensor.key,
        folder_,
        fmt::join(tensor.shape, ", "));
    tensors_.insert(name, transposed ? listed.t() : listed);
    in_gguf_.emplace(name, InGguf{tensor.key, transposed});
  }
}

torch::Tensor FolderWeights::value_of(const std::string& name) const {
  const auto found = in_gguf_.find(stored_name(name));
  if (found == in_gguf_.end()) {
    return get(name);
  }
  // Only this tensor is computed of quantised blocks.
  const auto& [key, transposed] = found->second;
  const auto dot = key.rfind('.');
  const auto read = read_weights(
      folder_,
      ReadOptions().prefix(key.substr(0, dot)).mmap(true).dequantize(true));
  const auto& value = read[key.substr(dot + 1)];
  return transposed ? value.t() : value;
}

std::string FolderWeights::prefix_of(const std::string& name) const {
  for (const auto& key : tensors_.keys()) {
    if (key == name || ends_with(key, "." + name)) {
      return key.substr(0, key.size() - name.size());
    }
  }
  C10_THROW_ERROR(
      Error, format_text("expected a tensor \"{}\" in \"{}\"", name, folder_));
}

bool FolderWeights::contains(const std::string& name) const {
  return tensors_.contains(name);
}

std::string FolderWeights::stored_name(const std::string& name) const {
  if (contains(name)) {
    return name;
  }
  const auto older = older_name(name);
  return contains(older) ? older : "";
}

const torch::Tensor& FolderWeights::get(const std::string& name) const {
  const auto* found = tensors_.find(stored_name(name));
  TORCH_ATTENTION_CHECK(
      found != nullptr, "expected a tensor \"{}\" in \"{}\"", name, folder_);
  return *found;
}

std::vector<int64_t> FolderWeights::matrix_sizes(
    const std::string& name) const {
  const auto sizes = get(name).sizes();
  TORCH_ATTENTION_CHECK(
      sizes.size() == 2,
      "expected a matrix \"{}\" in \"{}\", but got the shape ({})",
      name,
      folder_,
      fmt::join(sizes, ", "));
  return sizes.vec();
}

void FolderWeights::check_tied(
    const std::string& head,
    const std::string& embedding) {
  for (const auto& key : tensors_.keys()) {
    if (key == head || ends_with(key, "." + head)) {
      TORCH_ATTENTION_CHECK(
          value_of(key).equal(value_of(embedding)),
          "expected \"{}\" in \"{}\" to equal \"{}\", to which the "
          "configuration ties it (tie_word_embeddings)",
          key,
          folder_,
          embedding);
      take(key);
    }
  }
}

void FolderWeights::copy(
    const std::string& name,
    const torch::Tensor& parameter,
    bool transposed) {
  const auto& tensor = get(name);
  const auto value = transposed && tensor.dim() == 2 ? tensor.t() : tensor;
  const auto expected = transposed ? parameter.t() : parameter;
  TORCH_ATTENTION_CHECK(
      value.sizes() == parameter.sizes(),
      "expected the tensor \"{}\" in \"{}\" to have the shape ({}), but "
      "got ({})",
      name,
      folder_,
      fmt::join(expected.sizes(), ", "),
      fmt::join(tensor.sizes(), ", "));
  const c10::NoGradGuard no_gradients;
  const auto values = value_of(name);
  parameter.copy_(transposed && values.dim() == 2 ? values.t() : values);
  take(stored_name(name));
}

void FolderWeights::take(const std::string& key) {
  auto& tensor = tensors_[key];
  tensor = at::empty(tensor.sizes(), tensor.options().device(torch::kMeta));
  taken_.insert(key);
}

void FolderWeights::take_all(const std::string& start) {
  for (const auto& key : tensors_.keys()) {
    if (starts_with(key, start)) {
      take(key);
    }
  }
}

void FolderWeights::check_all_taken(const std::string& start) const {
  for (const auto& key : tensors_.keys()) {
    const bool has_to_be_taken =
        starts_with(key, start) || in_gguf_.count(key) > 0;
    TORCH_ATTENTION_CHECK(
        !has_to_be_taken || taken_.count(key) > 0,
        "the model has no place for the tensor \"{}\" in \"{}\"",
        key,
        folder_);
  }
}

} // namespace torch_attention::models
