#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace torch_attention::cpu {

constexpr size_t kAlignment = 64;

struct AlignedDelete {
  void operator()(std::byte* memory) const {
    ::operator delete(memory, std::align_val_t(kAlignment));
  }
};

using AlignedMemory = std::unique_ptr<std::byte, AlignedDelete>;

inline AlignedMemory allocate(size_t bytes) {
  return AlignedMemory(static_cast<std::byte*>(
      ::operator new(bytes, std::align_val_t(kAlignment))));
}

/// Returns the thread's memory for tiles. It is kept from call to call: fresh
/// pages would cost more than a small attention.
inline std::byte* thread_memory(size_t bytes) {
  thread_local AlignedMemory memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    memory.reset();
    size = 0;
    memory = allocate(bytes);
    size = bytes;
  }
  return memory.get();
}

/// Hands out parts of one piece of memory. Call `layout` once to count the
/// bytes and once to assign them.
class Parts {
 public:
  explicit Parts(std::byte* memory = nullptr) : memory_(memory) {}

  template <typename T>
  T* take(int64_t n) {
    auto* part =
        memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + size_);
    const auto bytes = static_cast<size_t>(n) * sizeof(T);
    size_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }

  size_t size() const {
    return size_;
  }

 private:
  std::byte* memory_;
  size_t size_ = 0;
};

} // namespace torch_attention::cpu
