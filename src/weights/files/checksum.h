#pragma once

#include <weights/files/mapped_file.h>

#include <cstdint>

namespace torch_attention::weights::files {

/// Returns the CRC-32 of zip files, computed on all of LibTorch's threads.
uint32_t crc32(const Bytes& bytes);

} // namespace torch_attention::weights::files
