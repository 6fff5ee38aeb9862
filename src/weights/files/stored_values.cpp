#include <weights/files/stored_values.h>

#include <check.h>
#include <format_text.h>
#include <weights/files/tensor_view.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

namespace torch_attention::weights::files {

/// An address range, whose pages are there from `fill` to `release`.
class StoredTensors::Range {
 public:
  Range(StoredValues values, size_t bytes)
      : values_(std::move(values)), bytes_(bytes) {
    void* data = ::mmap(
        nullptr,
        bytes_,
        PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1,
        0);
    TORCH_ATTENTION_CHECK(
        data != MAP_FAILED,
        "there is no address range of {} bytes for the values of a {} tensor: "
        "{}",
        bytes_,
        values_.form,
        std::strerror(errno));
    data_ = data;
  }

  ~Range() {
    ::munmap(data_, bytes_);
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  Range(Range&&) = delete;
  Range& operator=(Range&&) = delete;

  const StoredValues& values() const {
    return values_;
  }
  void* data() const {
    return data_;
  }
  bool has(const void* address) const {
    const auto* begin = static_cast<const char*>(data_);
    return address >= begin && address < begin + bytes_;
  }

  void prepare() {
    TORCH_ATTENTION_CHECK(
        ::mprotect(data_, bytes_, PROT_READ | PROT_WRITE) == 0,
        "there is no memory for {} bytes, the values of a {} tensor: {}",
        bytes_,
        values_.form,
        std::strerror(errno));
    if (values_.prepare) {
      values_.prepare();
    }
    is_prepared_ = true;
  }

  void fill() {
    const std::lock_guard lock(mutex_);
    if (!filled_) {
      if (!is_prepared_) {
        prepare();
      }
      values_.decode(data_);
      filled_ = true;
      for (const auto& bytes : values_.source) {
        files::release(bytes);
      }
    }
  }

  void release() {
    const std::lock_guard lock(mutex_);
    if (filled_) {
      ::madvise(data_, bytes_, MADV_DONTNEED);
      filled_ = false;
    }
  }

 private:
  StoredValues values_;
  size_t bytes_;
  void* data_ = nullptr;
  bool is_prepared_ = false;
  bool filled_ = false;
  std::mutex mutex_;
};

torch::Tensor StoredTensors::add(StoredValues values) {
  const auto shape = values.shape;
  const auto dtype = values.dtype;
  const auto strides = contiguous_strides(shape);
  const auto elements = shape.empty() ? 1 : strides.front() * shape.front();
  if (elements == 0) {
    return at::empty(shape, dtype);
  }
  uint64_t bytes = 0;
  TORCH_ATTENTION_CHECK(
      !__builtin_mul_overflow(
          static_cast<uint64_t>(elements), c10::elementSize(dtype), &bytes),
      "a {} tensor has {} elements",
      values.form,
      elements);
  auto range = std::make_shared<Range>(std::move(values), bytes);
  auto* data = range->data();
  ranges_.emplace(data, range);
  return at::from_blob(
      data, shape, [range](void* /*data*/) {}, dtype);
}

StoredTensors::Range* StoredTensors::range_of(
    const torch::Tensor& tensor) const {
  if (ranges_.empty() || tensor.numel() == 0 || !tensor.has_storage()) {
    return nullptr;
  }
  const auto* address = tensor.storage().data();
  const auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) {
    return nullptr;
  }
  auto& range = *std::prev(after)->second;
  return range.has(address) ? &range : nullptr;
}

const StoredValues* StoredTensors::find(const torch::Tensor& tensor) const {
  const auto* range = range_of(tensor);
  return range == nullptr ? nullptr : &range->values();
}

void StoredTensors::prepare(const torch::Tensor& tensor) const {
  if (auto* range = range_of(tensor)) {
    range->prepare();
  }
}

void StoredTensors::fill(const torch::Tensor& tensor) const {
  if (auto* range = range_of(tensor)) {
    range->fill();
  }
}

void StoredTensors::release(const torch::Tensor& tensor) const {
  if (auto* range = range_of(tensor)) {
    range->release();
  }
}

StoredTensors StoredTensors::only(const torch::Tensor& tensor) const {
  StoredTensors result;
  if (const auto* range = range_of(tensor)) {
    result.ranges_.insert(*ranges_.find(range->data()));
  }
  return result;
}

void StoredTensors::join(const StoredTensors& other) {
  ranges_.insert(other.ranges_.begin(), other.ranges_.end());
}

} // namespace torch_attention::weights::files
