#pragma once

#include <json_tree.h>
#include <weights/files/weight_file.h>

#include <string>

// Weights that were quantized by the libraries that transformers knows.

namespace torch_attention::weights::quantized {

/// Returns whether a file has tensors that `join_quantized` may change or
/// refuse: integers or numbers of a byte that a module would not have, or parts
/// of a quantized weight.
bool may_be_quantized(const files::WeightFile& file);

/// Returns the name of a weight that `join_quantized` would join or refuse; ""
/// if there is none.
std::string quantized_weight(
    const files::WeightFile& file,
    const Json* quantization);

/// Returns the name of a weight in parts that only the header of the file
/// describes, as torchao writes them; "" if there is none.
std::string torchao_weight(const files::WeightFile& file);

/// Replaces the tensors of a file that together are one quantized weight, such
/// as `q_proj.qweight`, `q_proj.qzeros` and `q_proj.scales`, by one tensor
/// `q_proj.weight` of `WeightFile::stored`, at the place of the first of them.
/// `WeightFile::check` takes the new name, and checks all of its tensors.
///
/// `quantization` is the object `quantization_config` (or `compression_config`)
/// of the `config.json` next to the file, that whole `config.json`, or a
/// `quantize_config.json`; null if there is none. FP8, GPTQ, AWQ,
/// compressed-tensors, bitsandbytes and torchao are read.
///
/// Values are float32, the products of the stored integers and scales; the
/// libraries round them to the dtype of scales or of the model. Those of
/// torchao have the dtype of the original tensor.
///
/// A weight that is quantized in another way, or has an unexpected shape or
/// dtype, stays, and its name is added to `WeightFile::unreadable` with the
/// reason: "is quantized by "hqq", which is not read". This concerns plain
/// weights with a scale beside them, too, and those of GPT-2's attention if
/// only some of these are quantized.
/// `WeightFile::quantization` lists these names. Tensors that are not quantized
/// stay, but for scales of a cache (`k_scale`, `v_scale`). Throws c10::Error if
/// there is no address range for a weight.
///
/// Example:
/// ```
/// auto file = read_weight_file(folder + "/model.safetensors");
/// const auto config = read_config_file(folder + "/config.json");
/// join_quantized(file, config.find("quantization_config"));
/// ```
void join_quantized(files::WeightFile& file, const Json* quantization);

} // namespace torch_attention::weights::quantized
