#pragma once

#include <torch_attention/weights/load.h>

#include <torch/types.h>

#include <optional>
#include <string>

namespace torch_attention::weights::pretrained {

/// The embeddings of distances that all layers of a model share.
struct SharedEmbeddings {
  /// The epsilon of the LayerNorm that they pass first, if the model has one.
  std::optional<double> norm_eps;
};

/// Sets a module's `relative_embeddings`, `target`, from the file of the
/// report, which has them next to the list of layers, and adds them to the
/// report. `path` is that of the layer's attention, such as
/// "encoder.layer.0.attention". Throws c10::Error if the file has no such
/// tensors, or of another shape.
void load_shared_embeddings(
    const SharedEmbeddings& shared,
    const std::string& path,
    const torch::Tensor& target,
    LoadReport& report);

} // namespace torch_attention::weights::pretrained
