#include <large_pages.h>

#include <ATen/ops/empty.h>

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace torch_attention {

int64_t bytes_to_large_page(const void* data) {
  const auto past = static_cast<int64_t>(
      reinterpret_cast<std::uintptr_t>(data) % kLargePageBytes);
  return (kLargePageBytes - past) % kLargePageBytes;
}

void ask_for_large_pages(const at::Tensor& x) {
#ifdef MADV_HUGEPAGE
  if (!x.device().is_cpu() || !x.is_contiguous()) {
    return;
  }
  auto* data = static_cast<std::byte*>(x.mutable_data_ptr());
  const auto skipped = bytes_to_large_page(data);
  const auto left = static_cast<int64_t>(x.nbytes()) - skipped;
  if (left >= kLargePageBytes) {
    // Advice may be ignored, and then the pages are small.
    (void)::madvise(
        data + skipped,
        static_cast<size_t>(left / kLargePageBytes * kLargePageBytes),
        MADV_HUGEPAGE);
  }
#endif
}

at::Tensor empty_on_large_pages(
    at::IntArrayRef sizes,
    const at::TensorOptions& options) {
  auto x = at::empty(sizes, options);
  ask_for_large_pages(x);
  return x;
}

} // namespace torch_attention
