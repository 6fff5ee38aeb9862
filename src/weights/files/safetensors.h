#pragma once

#include <weights/files/mapped_file.h>
#include <weights/files/weight_file.h>

#include <cstdint>
#include <string>

namespace torch_attention::weights::files {

/// The largest header in bytes, as the format defines it.
inline constexpr uint64_t kMaxHeader = 100'000'000;

/// Returns whether the bytes may be a safetensors file: a length and a JSON
/// object.
bool is_safetensors(const Bytes& file);

/// Reads a safetensors file (https://github.com/huggingface/safetensors).
/// Throws c10::Error that says what is wrong with it.
WeightFile read_safetensors(const Bytes& file);

/// Returns whether the bytes may be the index of a model in several safetensors
/// files: a JSON object.
bool is_sharded_index(const Bytes& file);

/// Reads `model.safetensors.index.json` and, in `folder`, those of its files
/// that have keys beginning with `prefix`.
WeightFile read_sharded(
    const Bytes& index,
    const std::string& folder,
    const std::string& prefix);

/// Returns the name of a tensor's CRC-32 in `__metadata__`. The value there is
/// eight hexadecimal digits.
std::string checksum_name(const std::string& key);

} // namespace torch_attention::weights::files
