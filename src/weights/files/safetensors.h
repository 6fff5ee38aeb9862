#pragma once

#include <weights/files/mapped_file.h>
#include <weights/files/weight_file.h>

#include <cstdint>
#include <string>

namespace torch_attention::weights::files {

/// The largest size of a header in bytes, as the format defines it.
inline constexpr uint64_t kMaxHeader = 100'000'000;

/// Returns whether the bytes may be a safetensors file: a length and a JSON
/// object.
bool is_safetensors(const Bytes& file);

/// Reads a safetensors file (https://github.com/huggingface/safetensors).
/// Throws c10::Error if the file is invalid.
WeightFile read_safetensors(const Bytes& file);

/// Returns whether the bytes may be the index of a sharded model: a JSON
/// object.
bool is_sharded_index(const Bytes& file);

/// Reads `model.safetensors.index.json` and those files in `folder` that have
/// keys beginning with `prefix`.
WeightFile read_sharded(
    const Bytes& index,
    const std::string& folder,
    const std::string& prefix);

/// Returns the name of a tensor's CRC-32 in `__metadata__`. Its value is eight
/// hexadecimal digits.
std::string checksum_name(const std::string& key);

} // namespace torch_attention::weights::files
