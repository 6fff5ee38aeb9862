#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>

namespace torch_attention::testing {

/// During its lifetime, LibTorch's CPU allocator fails at the allocation of the
/// given number, counted from 0, and at all that follow.
class FailingAllocator : public c10::Allocator {
 public:
  explicit FailingAllocator(int64_t successes)
      : old_(c10::GetCPUAllocator()), left_(successes) {
    c10::SetCPUAllocator(this, kPriority);
  }
  ~FailingAllocator() override {
    c10::SetCPUAllocator(old_, kPriority);
  }
  FailingAllocator(const FailingAllocator&) = delete;
  FailingAllocator& operator=(const FailingAllocator&) = delete;
  FailingAllocator(FailingAllocator&&) = delete;
  FailingAllocator& operator=(FailingAllocator&&) = delete;

  c10::DataPtr allocate(size_t size) override {
    TORCH_CHECK(left_-- > 0, "no memory left for the test");
    return old_->allocate(size);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return old_->raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }

 private:
  static constexpr uint8_t kPriority = 100;

  c10::Allocator* old_;
  int64_t left_;
};

} // namespace torch_attention::testing
