#pragma once

#include <json_tree.h>
#include <weights/files/weight_file.h>

// Weights that were quantized by the libraries that transformers knows.

namespace torch_attention::weights::quantized {

/// Returns whether a file has tensors that `join_quantized` may change or
/// refuse: integers or numbers of a byte that a module would not have, or parts
/// of a quantized weight.
bool may_be_quantized(const files::WeightFile& file);

/// Replaces the tensors of a file that together are one quantized weight, such
/// as `q_proj.qweight`, `q_proj.qzeros` and `q_proj.scales`, by one float32
/// tensor `q_proj.weight` of `WeightFile::stored`, at the place of the first of
/// them. `WeightFile::check` takes the new name, and checks all of its tensors.
///
/// `quantization` is the object `quantization_config` (or `compression_config`)
/// of the `config.json` next to the file, that whole `config.json`, or a
/// `quantize_config.json`; null if there is none. FP8, GPTQ, AWQ,
/// compressed-tensors and bitsandbytes are read.
///
/// Values are the products of the stored integers and scales in float32; the
/// libraries round them to the dtype of scales or of the model.
///
/// A weight that is quantized in another way, or has an unexpected shape or
/// dtype, stays, and its name is added to `WeightFile::unreadable` with the
/// reason: "is quantized by "hqq", which is not read". Tensors that are not
/// quantized stay, but for scales of a cache (`k_scale`, `v_scale`). Throws
/// c10::Error if there is no address range for a weight.
///
/// Example:
/// ```
/// auto file = read_weight_file(folder + "/model.safetensors");
/// const auto config = read_config_file(folder + "/config.json");
/// join_quantized(file, config.find("quantization_config"));
/// ```
void join_quantized(files::WeightFile& file, const Json* quantization);

} // namespace torch_attention::weights::quantized
