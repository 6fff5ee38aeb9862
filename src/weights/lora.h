#pragma once

#include <weights/files/weight_file.h>

#include <string>

namespace torch_attention::weights {

/// Adds a LoRA adapter to the weights of a whole file: a weight W becomes
/// W + B A * scale, computed in float32 when it is copied. Tensors that the
/// adapter has whole (biases, `modules_to_save`) replace those of the file.
///
/// `folder` has `adapter_config.json` and `adapter_model.safetensors` or
/// `adapter_model.bin`, as PEFT's `save_pretrained` writes them. Of a sharded
/// model that was read in part, only that part changes.
///
/// Throws c10::Error if the adapter is of another kind, or does not fit the
/// file.
void merge_lora(files::WeightFile& file, const std::string& folder);

} // namespace torch_attention::weights
