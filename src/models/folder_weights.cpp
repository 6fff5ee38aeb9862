#include <models/folder_weights.h>

#include <check.h>
#include <format_text.h>
#include <torch_attention/weights/read.h>

#include <c10/core/GradMode.h>

#include <fmt/ranges.h>

#include <string_view>

namespace torch_attention::models {

namespace {

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() &&
      text.substr(text.size() - end.size()) == end;
}

/// Returns the name that older files give to a parameter of a layer norm.
std::string older_name(const std::string& name) {
  const std::string weight = ".weight";
  return ends_with(name, weight)
      ? name.substr(0, name.size() - weight.size()) + ".gamma"
      : name.substr(0, name.rfind('.')) + ".beta";
}

} // namespace

FolderWeights::FolderWeights(const std::string& folder)
    : folder_(folder),
      tensors_(read_weights(
          folder,
          ReadOptions().mmap(true).check(false).dequantize(true))) {}

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
    const std::string& embedding) const {
  for (const auto& key : tensors_.keys()) {
    if (key == head || ends_with(key, "." + head)) {
      TORCH_ATTENTION_CHECK(
          tensors_[key].equal(get(embedding)),
          "expected \"{}\" in \"{}\" to equal \"{}\", to which the "
          "configuration ties it (tie_word_embeddings)",
          key,
          folder_,
          embedding);
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
  parameter.copy_(value);
  taken_.insert(stored_name(name));
}

void FolderWeights::take_all(const std::string& start) {
  for (const auto& key : tensors_.keys()) {
    if (starts_with(key, start)) {
      taken_.insert(key);
    }
  }
}

void FolderWeights::check_all_taken(const std::string& start) const {
  for (const auto& key : tensors_.keys()) {
    TORCH_ATTENTION_CHECK(
        !starts_with(key, start) || taken_.count(key) > 0,
        "the model has no place for the tensor \"{}\" in \"{}\"",
        key,
        folder_);
  }
}

} // namespace torch_attention::models
