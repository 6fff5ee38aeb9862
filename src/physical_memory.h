#pragma once

#include <unistd.h>

#include <cstdint>
#include <limits>

namespace torch_attention {

/// Returns the bytes of memory that this machine has; of one that does not say,
/// the largest number. To ask the system for more would only end the program.
inline int64_t physical_memory() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  return pages <= 0 || page <= 0 || pages > kMost / page ? kMost : pages * page;
}

} // namespace torch_attention
