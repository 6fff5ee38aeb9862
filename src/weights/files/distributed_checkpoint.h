#pragma once

#include <weights/files/mapped_file.h>
#include <weights/files/weight_file.h>

#include <string>

namespace torch_attention::weights::files {

/// The name of the file that lists a distributed checkpoint's tensors.
inline constexpr const char* kDistributedMetadata = ".metadata";

/// Returns whether the bytes may be the metadata of a distributed checkpoint: a
/// pickle.
bool is_distributed_metadata(const Bytes& file);

/// Reads a checkpoint that `torch.distributed.checkpoint.save` wrote: its
/// metadata, and the shards in `folder`. A tensor of several shards is put
/// together when it is needed. No code of the pickle is run.
///
/// Throws c10::Error if a file is missing or invalid, or if shards do not make
/// a whole tensor.
WeightFile read_distributed(const Bytes& metadata, const std::string& folder);

} // namespace torch_attention::weights::files
