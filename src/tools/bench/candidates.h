#pragma once

#include <tools/bench/work.h>

#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/multi_head_attention_wrapper.h>
#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// The seed of what the candidates share.
constexpr uint64_t kSeed = 123;

/// One of several ways to do the same work.
struct Candidate {
  std::string name;

  /// Does the work once and returns the output (..., T, D), with tokens last
  /// but one. With backward it then holds the gradients.
  std::function<torch::Tensor()> run;

  /// Returns the gradients of the last run, of input and weights, in one order
  /// and layout for all candidates. The candidate forgets them.
  std::function<std::vector<torch::Tensor>()> take_gradients = [] {
    return std::vector<torch::Tensor>();
  };

  /// True if it drops attention weights; `set_dropout` turns this on and off.
  bool drops = false;
  std::function<void(bool)> set_dropout;

  /// The number of first tokens for which the others compute the same; none:
  /// all.
  std::optional<int64_t> compared_tokens;

  /// The share of the largest element by which its results may differ from
  /// ours. Sums of thousands of floats in another order are 1e-6 apart, wrong
  /// ones more than 1e-2.
  double allowed_difference = 1e-4;

  /// The number of times that the case's work contains its work. Its time is
  /// multiplied by this in the ratio to ours.
  double times = 1;
};

/// Returns one without gradients.
Candidate forward_candidate(
    const std::string& name,
    std::function<torch::Tensor()> run);

/// The weights and the input that all candidates for a module share.
struct ModuleData {
  /// (B, T, C)
  torch::Tensor input;
  /// The gradient of the output (B, T, H D); undefined without backward.
  torch::Tensor cotangent;
  MultiHeadAttention weights = nullptr;
};

/// Draws the weights and the input. `mask` as in `MultiHeadAttentionOptions`.
ModuleData draw_module(const Work& work, bool mask = true);

/// Returns `data` rounded to `dtype`; the module is the same, which changes.
ModuleData in_dtype(ModuleData data, torch::Dtype dtype);

/// Returns our module. With `Kernel::kReference` it is the documents' sequence
/// of LibTorch's operations.
Candidate our_module(
    const std::string& name,
    const ModuleData& data,
    Kernel kernel);

/// Returns four linear layers around LibTorch's `scaled_dot_product_attention`,
/// in Python's layout (B, T, C).
Candidate sdpa_module(const std::string& name, const ModuleData& data);

/// Returns `torch::nn::MultiheadAttention` with a mask that is added, in its
/// own layout (T, B, C), and without the attention weights. Takes modules with
/// C == H D.
Candidate libtorch_module(const std::string& name, const ModuleData& data);

/// A `MultiHeadAttentionWrapper` with an input, as `ModuleData`.
struct WrapperData {
  torch::Tensor input;
  torch::Tensor cotangent;
  MultiHeadAttentionWrapper weights = nullptr;
};

WrapperData draw_wrapper(const Work& work);

Candidate our_wrapper(
    const std::string& name,
    const WrapperData& data,
    Kernel kernel);

/// Inputs (B, H, T, D) of attention alone; key and value may have more tokens
/// and fewer heads, each for a group of the query's.
struct AttentionData {
  torch::Tensor query, key, value;
  /// The gradient of the output; undefined without backward.
  torch::Tensor cotangent;
};

AttentionData draw_attention(const Work& work);

/// Returns our `functional::scaled_dot_product_attention`.
Candidate our_attention(
    const std::string& name,
    const AttentionData& data,
    const functional::ScaledDotProductAttentionFuncOptions& options);

/// Options of LibTorch's `scaled_dot_product_attention`.
struct SdpaOptions {
  double dropout = 0;
  bool causal = true;
  bool enable_gqa = false;
  /// A mask that is added to the scores; undefined: none.
  torch::Tensor mask;
};

Candidate sdpa_attention(
    const std::string& name,
    const AttentionData& data,
    const SdpaOptions& options);

/// Returns a mask (T, T): 0 where a query sees a key, else -inf.
torch::Tensor additive_mask(int64_t T, std::optional<int64_t> window);

} // namespace torch_attention::tools
