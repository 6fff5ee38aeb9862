#include <weights/files/overlap.h>

#include <check.h>
#include <format_text.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace torch_attention::weights::files {

namespace {

constexpr uint64_t kFreeBytes = uint64_t{1} << 20;

/// Returns the number of bytes that the tensors occupy, counting each once.
uint64_t bytes_in_file(const StateDict& tensors) {
  std::vector<std::pair<const uint8_t*, uint64_t>> places;
  for (const auto& item : tensors) {
    const auto& tensor = item.value();
    if (tensor.numel() > 0) {
      places.emplace_back(
          static_cast<const uint8_t*>(tensor.data_ptr()),
          static_cast<uint64_t>(elements_spanned(tensor)) *
              tensor.element_size());
    }
  }
  std::sort(places.begin(), places.end());
  uint64_t bytes = 0;
  const uint8_t* end = nullptr;
  for (const auto& [begin, size] : places) {
    const auto* from = std::max(begin, end, std::less<>());
    const auto* to = begin + size;
    if (std::less<>()(from, to)) {
      bytes += static_cast<uint64_t>(to - from);
      end = to;
    }
  }
  return bytes;
}

} // namespace

int64_t elements_spanned(const torch::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return 0;
  }
  int64_t elements = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    elements += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return elements;
}

OverlapLimit::OverlapLimit(
    const StateDict& tensors,
    uint64_t times,
    std::string advice)
    : bytes_in_file_(bytes_in_file(tensors)),
      times_(times),
      bytes_left_(times * bytes_in_file_ + kFreeBytes),
      advice_(std::move(advice)) {}

void OverlapLimit::count(
    const std::string& key,
    const torch::Tensor& tensor,
    int64_t elements) {
  // Divides, since the number of bytes of a huge tensor could overflow.
  const auto item = static_cast<uint64_t>(tensor.element_size());
  TORCH_ATTENTION_CHECK(
      static_cast<uint64_t>(elements) <= bytes_left_ / item,
      "the tensors up to \"{}\" of shape ({}) and strides ({}) read the "
      "file's {} bytes more than {} times{}",
      shortened(key, 200),
      fmt::join(tensor.sizes(), ", "),
      fmt::join(tensor.strides(), ", "),
      bytes_in_file_,
      times_,
      advice_);
  bytes_left_ -= static_cast<uint64_t>(elements) * item;
}

} // namespace torch_attention::weights::files
