#pragma once

#include <unistd.h>

#include <cstdint>
#include <limits>

namespace torch_attention {

/// Returns the bytes of physical memory of this machine; the largest number if
/// unknown. Allocating more would only end the program.
inline int64_t physical_memory() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  return pages <= 0 || page <= 0 || pages > kMost / page ? kMost : pages * page;
}

} // namespace torch_attention
