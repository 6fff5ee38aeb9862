#include <weights/files/tensor_view.h>

#include <check.h>
#include <format_text.h>
#include <weights/files/overlap.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace torch_attention::weights::files {

namespace {

int64_t multiply(int64_t a, int64_t b) {
  int64_t result = 0;
  TORCH_CHECK(
      !__builtin_mul_overflow(a, b, &result),
      "the file is damaged or malicious: a tensor of more than 2^63 elements");
  return result;
}

int64_t add(int64_t a, int64_t b) {
  int64_t result = 0;
  TORCH_CHECK(
      !__builtin_add_overflow(a, b, &result),
      "the file is damaged or malicious: a tensor of more than 2^63 elements");
  return result;
}

/// Returns the index of the last element that the tensor reads, plus one.
int64_t end_of(const TensorLayout& layout) {
  TORCH_ATTENTION_CHECK(
      layout.sizes.size() <= kMaxDimensions,
      "the file is damaged or malicious: a tensor of {} dimensions",
      layout.sizes.size());
  TORCH_ATTENTION_CHECK(
      layout.sizes.size() == layout.strides.size(),
      "the file is damaged: a tensor of {} dimensions has {} strides",
      layout.sizes.size(),
      layout.strides.size());
  int64_t elements = 1;
  int64_t last = layout.offset;
  TORCH_ATTENTION_CHECK(
      layout.offset >= 0,
      "the file is damaged: a tensor begins at {}",
      layout.offset);
  for (size_t i = 0; i < layout.sizes.size(); ++i) {
    const auto size = layout.sizes[i];
    const auto stride = layout.strides[i];
    TORCH_ATTENTION_CHECK(
        size >= 0 && stride >= 0,
        "the file is damaged: a tensor of shape ({}) with strides ({})",
        fmt::join(layout.sizes, ", "),
        fmt::join(layout.strides, ", "));
    elements = multiply(elements, size);
    last = add(last, multiply(stride, size > 0 ? size - 1 : 0));
  }
  return elements == 0 ? layout.offset : add(last, 1);
}

} // namespace

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (auto i = sizes.size(); i-- > 0;) {
    TORCH_ATTENTION_CHECK(
        sizes[i] >= 0,
        "the file is damaged: a tensor of shape ({})",
        fmt::join(sizes, ", "));
    strides[i] = stride;
    // As in LibTorch, an empty dimension does not make strides zero.
    stride = multiply(stride, std::max<int64_t>(sizes[i], 1));
  }
  return strides;
}

Bytes aligned(const Bytes& bytes, size_t alignment) {
  if (bytes.size == 0 ||
      reinterpret_cast<uintptr_t>(bytes.data) % alignment == 0) {
    return bytes;
  }
  const auto copy = at::empty({static_cast<int64_t>(bytes.size)}, torch::kByte);
  std::memcpy(copy.data_ptr(), bytes.data, bytes.size);
  return {
      std::make_shared<torch::Tensor>(copy),
      static_cast<const uint8_t*>(copy.data_ptr()),
      bytes.size};
}

torch::Tensor view_tensor(const Bytes& storage, const TensorLayout& layout) {
  const auto item = static_cast<int64_t>(c10::elementSize(layout.dtype));
  const auto end = multiply(end_of(layout), item);
  TORCH_ATTENTION_CHECK(
      static_cast<uint64_t>(end) <= storage.size,
      "the file is damaged: a tensor of shape ({}), strides ({}) and "
      "offset {} ends at byte {} of a storage of {} bytes",
      fmt::join(layout.sizes, ", "),
      fmt::join(layout.strides, ", "),
      layout.offset,
      end,
      storage.size);
  // Nothing writes to it before `make_writable`: the loader only copies from
  // it.
  auto* data =
      const_cast<uint8_t*>(storage.data) + multiply(layout.offset, item);
  // Not a `deleter`: LibTorch copies that in a function that must not throw,
  // which would end the program if memory ran out.
  using Owner = std::shared_ptr<const void>;
  auto owner = std::make_unique<Owner>(storage.owner);
  return at::for_blob(data, layout.sizes)
      .strides(layout.strides)
      .context(
          owner.release(),
          [](void* context) { delete static_cast<Owner*>(context); })
      .options(torch::TensorOptions(layout.dtype))
      .make_tensor();
}

void check_values(const std::string& key, const torch::Tensor& tensor) {
  if (tensor.scalar_type() != torch::kBool || tensor.numel() == 0) {
    return;
  }
  auto bytes = tensor.view(torch::kByte);
  const auto span = elements_spanned(bytes);
  if (bytes.numel() > span) {
    // Its elements overlap: check each byte once.
    bytes = bytes.as_strided({span}, {1});
  }
  TORCH_ATTENTION_CHECK(
      bytes.max().item<int64_t>() <= 1,
      "the file is damaged: the bool tensor \"{}\" has values other than "
      "0 and 1",
      key);
}

} // namespace torch_attention::weights::files
