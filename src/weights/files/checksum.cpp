#include <weights/files/checksum.h>

#include <ATen/Parallel.h>

#include <libdeflate.h>
#include <zlib.h>

#include <algorithm>
#include <vector>

namespace torch_attention::weights::files {

uint32_t crc32(const Bytes& bytes) {
  constexpr size_t kBlock = size_t{1} << 20;
  const auto blocks = static_cast<int64_t>((bytes.size + kBlock - 1) / kBlock);
  const auto block = [&](int64_t i) {
    const auto offset = static_cast<size_t>(i) * kBlock;
    return bytes.part(offset, std::min(kBlock, bytes.size - offset));
  };
  std::vector<uLong> sums(static_cast<size_t>(blocks));
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const auto part = block(i);
      // Many times faster than zlib's own function.
      sums[static_cast<size_t>(i)] =
          ::libdeflate_crc32(0, part.data, part.size);
      release(part);
    }
  });
  uLong sum = ::crc32_z(0, nullptr, 0);
  for (int64_t i = 0; i < blocks; ++i) {
    sum = ::crc32_combine(
        sum, sums[static_cast<size_t>(i)], static_cast<z_off_t>(block(i).size));
  }
  return static_cast<uint32_t>(sum);
}

} // namespace torch_attention::weights::files
