#pragma once

#include <weights/files/mapped_file.h>

#include <cstdint>

namespace torch_attention::weights::files {

/// CRC-32 (the one of zip files), by all of LibTorch's threads.
uint32_t crc32(const Bytes& bytes);

} // namespace torch_attention::weights::files
