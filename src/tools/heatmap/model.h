#pragma once

#include <tools/heatmap/attention_map.h>
#include <tools/model_fields.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// Computes the attention of a layer: x (1, T, C), what enters it, -> what
/// leaves its last projection.
using Attend =
    std::function<torch::Tensor(int64_t layer, const torch::Tensor& x)>;

/// A run of a model up to the attention of its layer `last`.
struct ModelRun {
  std::string folder;
  std::string model_type;
  ModelFields config;
  /// (T)
  torch::Tensor ids;
  int64_t last = 0;
  Attend attend;
};

/// Norms after each part: BERT, ELECTRA, RoBERTa and its descendants,
/// DistilBERT.
void run_bert_like(ModelRun& run);

/// Layer norms before each part: GPT-2.
void run_gpt2(ModelRun& run);

/// Root mean square norms and gated networks: Llama, Mistral, Qwen2, Qwen3,
/// Gemma, Gemma 2, Gemma 3.
void run_llama_like(ModelRun& run);

/// The values of `model_type` that `weights_of_model` runs.
std::vector<std::string> runnable_model_types();

/// Runs the model of a folder on the tokens `ids`, in float32, and returns the
/// attention weights of `layers`, by `forward_with_weights`; of all layers if
/// there are none.
///
/// Throws c10::Error if the model is of another type, has no such layer, or has
/// no place for so many tokens or for one of them.
std::vector<LayerWeights> weights_of_model(
    const std::string& folder,
    const std::vector<int64_t>& ids,
    std::vector<int64_t> layers);

} // namespace torch_attention::tools
