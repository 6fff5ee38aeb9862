#include "model_weights.h"

#include <torch/utils.h>

#include <torch_attention/weights/read.h>

namespace encoder {

namespace {

constexpr const char* kFirst = "embeddings.word_embeddings.weight";

bool starts_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

/// Returns what comes before "embeddings." in a file: nothing, or "bert.".
std::string prefix_in(
    const torch::OrderedDict<std::string, torch::Tensor>& tensors,
    const std::string& folder) {
  const std::string first = kFirst;
  for (const auto& key : tensors.keys()) {
    const auto place = key.rfind(first);
    if (place != std::string::npos && place + first.size() == key.size() &&
        (place == 0 || key[place - 1] == '.')) {
      return key.substr(0, place);
    }
  }
  C10_THROW_ERROR(Error, c10::str(folder, ": expected a tensor ", first));
}

} // namespace

ModelWeights::ModelWeights(const std::string& folder)
    : folder_(folder),
      tensors_(torch_attention::read_weights(
          folder,
          torch_attention::ReadOptions().mmap(true).check(false))) {
  prefix_ = prefix_in(tensors_, folder);
}

const torch::Tensor& ModelWeights::get(const std::string& name) const {
  const auto* found = tensors_.find(prefix_ + name);
  TORCH_CHECK(found, folder_, ": expected a tensor ", prefix_ + name);
  return *found;
}

std::vector<int64_t> ModelWeights::matrix_sizes(const std::string& name) const {
  const auto sizes = get(name).sizes().vec();
  TORCH_CHECK(
      sizes.size() == 2,
      folder_,
      ": expected ",
      prefix_ + name,
      " to be a matrix but got the shape ",
      get(name).sizes());
  return sizes;
}

void ModelWeights::copy(const std::string& name, torch::Tensor parameter) {
  const auto& tensor = get(name);
  TORCH_CHECK(
      tensor.sizes() == parameter.sizes(),
      folder_,
      ": expected ",
      prefix_ + name,
      " of shape ",
      parameter.sizes(),
      " but got ",
      tensor.sizes());
  const torch::NoGradGuard no_gradients;
  parameter.copy_(tensor);
  taken_.insert(prefix_ + name);
}

void ModelWeights::take_all(const std::string& start) {
  for (const auto& key : tensors_.keys()) {
    if (starts_with(key, prefix_ + start)) {
      taken_.insert(key);
    }
  }
}

void ModelWeights::check_all_taken() const {
  for (const auto& key : tensors_.keys()) {
    const auto is_ours = starts_with(key, prefix_ + "embeddings.") ||
        starts_with(key, prefix_ + "encoder.") ||
        starts_with(key, prefix_ + "transformer.");
    TORCH_CHECK(
        !is_ours || taken_.count(key) > 0,
        folder_,
        ": the model has no place for ",
        key);
  }
}

} // namespace encoder
