#include "memory.h"

#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace gpt {

void expect_weights() {
  // LibTorch's own switch.
  ::setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);
}

void keep_freed_memory() {
#if defined(__GLIBC__)
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

} // namespace gpt
