#pragma once

#include <torch_attention/weights/write.h>

#include <weights/files/stored_values.h>
#include <weights/state_dict.h>

#include <string>

namespace torch_attention::weights {

/// Writes like `write_weights`. The values of tensors in `stored` are computed
/// when they are written, one tensor at a time.
void write_stored(
    const StateDict& tensors,
    const files::StoredTensors& stored,
    const std::string& path,
    const WriteOptions& options);

} // namespace torch_attention::weights
