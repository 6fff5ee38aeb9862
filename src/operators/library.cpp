#include <operators/library.h>

#include <operators/arguments.h>
#include <operators/attention.h>
#include <operators/block_mask.h>
#include <operators/decode.h>
#include <operators/rotary.h>
#include <operators/takes.h>
#include <operators/viewed_scores.h>

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <string>
#include <vector>

namespace torch_attention::operators {

namespace {

using BoxedKernel = void(const c10::OperatorHandle&, torch::jit::Stack*);

template <BoxedKernel* kernel>
torch::CppFunction boxed() {
  return torch::CppFunction::makeFromBoxedFunction<kernel>();
}

std::string with_rules(const std::string& name, const std::string& first) {
  return name + "(" + first + "Tensor query, Tensor key, Tensor value, " +
      schema_of_arguments() + ") -> ";
}

/// Defines an operator. Alias analysis relies on the schema alone: arguments
/// without an alias annotation are not aliased.
void define(
    torch::Library& library,
    const std::string& schema,
    const std::vector<at::Tag>& tags) {
  library.def(torch::schema(schema.c_str()), tags);
}

/// Adds the kernels of devices that hold data: CPU and CUDA.
void add_device_kernels(torch::Library& library) {
  library.impl("attention", boxed<&attention>());
  library.impl("attention_with_weights", boxed<&attention_with_weights>());
  library.impl("decode", boxed<&decode>());
  library.impl("rotary", boxed<&rotary>());
  library.impl("_attention_forward", boxed<&attention_forward>());
  library.impl("_attention_backward", boxed<&attention_backward>());
  library.impl(
      "_attention_with_weights_backward",
      boxed<&attention_with_weights_backward>());
  library.impl("_rotary_backward", boxed<&rotary_backward>());
}

void add_autocast_kernels(torch::Library& library) {
  library.impl("attention", boxed<&autocast_attention>());
  library.impl("attention_with_weights", boxed<&autocast_attention>());
  library.impl("decode", boxed<&autocast_decode>());
}

} // namespace

const char* attention_name() {
  return "torch_attention::attention";
}

const char* sdpa_name() {
  return "torch_attention::scaled_dot_product_attention";
}

const char* takes_name() {
  return "torch_attention::_takes";
}

const char* takes_sdpa_name() {
  return "torch_attention::_takes_sdpa";
}

const char* product_name() {
  return "torch_attention::_product";
}

const char* in_view_name() {
  return "torch_attention::_in_view";
}

const char* out_of_view_name() {
  return "torch_attention::_out_of_view";
}

TORCH_LIBRARY(torch_attention, library) {
  // With `dropout_p` these draw from LibTorch's generator.
  const std::vector<at::Tag> random{
      at::Tag::nondeterministic_seeded, at::Tag::pt2_compliant_tag};
  const std::vector<at::Tag> plain{at::Tag::pt2_compliant_tag};
  define(library, with_rules("attention", "") + "Tensor", random);
  define(
      library,
      "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, "
      "Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, "
      "float? scale=None, bool enable_gqa=False) -> Tensor",
      random);
  define(
      library,
      with_rules("attention_with_weights", "") +
          "(Tensor output, Tensor weights)",
      random);
  define(
      library,
      std::string("decode(") + kDecodeTensors + ", " +
          schema_of_arguments(kOfDecode) + ") -> Tensor",
      plain);
  define(
      library,
      std::string("rotary(Tensor x, ") + kRotaryArguments + ") -> Tensor",
      plain);
  // The forward and backward steps that compilers see when gradients are
  // needed.
  define(
      library,
      with_rules("_attention_forward", "") +
          "(Tensor output, Tensor statistics, Tensor seed)",
      random);
  define(
      library,
      with_rules(
          "_attention_backward",
          "Tensor grad_output, Tensor output, Tensor statistics, Tensor seed, "
          "bool[] wanted, ") +
          "Tensor[]",
      plain);
  define(
      library,
      with_rules(
          "_attention_with_weights_backward",
          "Tensor grad_output, Tensor grad_weights, Tensor output, "
          "Tensor weights, bool[] wanted, ") +
          "Tensor[]",
      plain);
  define(
      library,
      std::string("_rotary_backward(Tensor grad_output, ") + kRotaryArguments +
          ") -> Tensor",
      plain);
  // Called by TorchScript models that `swap_attention` changed.
  define(
      library,
      "_takes(Tensor query, Tensor transposed_key, Tensor value, int dim, "
      "float scale, int[] dtypes, Tensor[] hiding, float[] fills, "
      "Tensor[] biases, int[] own_dtypes=[]) -> bool",
      plain);
  define(
      library,
      "_takes_sdpa(Tensor query, Tensor key, Tensor value, "
      "Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, "
      "float? scale=None, bool enable_gqa=False) -> bool",
      plain);
  define(
      library,
      "_product(Scalar number, Tensor[] factors, bool[] divides) -> float",
      plain);
  define(
      library,
      "_in_view(Tensor(a) x, Tensor query, Tensor transposed_key, int[] sizes, "
      "int[] back) -> Tensor(a)",
      plain);
  define(
      library,
      "_out_of_view(Tensor(a) output, Tensor query, Tensor transposed_key) -> "
      "Tensor(a)",
      plain);
}

// Masks as tiles.
TORCH_LIBRARY_FRAGMENT(torch_attention, library) {
  // The length of the result depends on the tensors' numbers.
  define(
      library,
      "block_mask(str program, Tensor[] tensors, int num_queries, "
      "int num_keys, int batch_size=1, int num_heads=1, "
      "Tensor? query_offsets=None, Tensor? key_offsets=None) -> Tensor",
      {at::Tag::dynamic_output_shape, at::Tag::pt2_compliant_tag});
  define(
      library,
      "block_mask_hidden(Tensor packed) -> Tensor",
      {at::Tag::dynamic_output_shape, at::Tag::pt2_compliant_tag});
  for (const auto* schema :
       {"block_mask_sizes(Tensor packed) -> int[]",
        "block_mask_density(Tensor packed) -> float"}) {
    define(library, schema, {at::Tag::data_dependent_output});
  }
  // Python registers its kernel.
  define(
      library,
      std::string("_mask_function(") + kMaskFunctionArguments + ") -> Tensor",
      {});
}

TORCH_LIBRARY_IMPL(torch_attention, CPU, library) {
  add_device_kernels(library);
}

TORCH_LIBRARY_IMPL(torch_attention, CUDA, library) {
  add_device_kernels(library);
}

TORCH_LIBRARY_IMPL(torch_attention, Meta, library) {
  library.impl("attention", boxed<&attention_meta>());
  library.impl("attention_with_weights", boxed<&attention_with_weights_meta>());
  library.impl("decode", boxed<&decode_meta>());
  library.impl("rotary", boxed<&rotary_meta>());
  library.impl("_attention_forward", boxed<&attention_forward_meta>());
  library.impl("_attention_backward", boxed<&gradients_meta>());
  library.impl("_attention_with_weights_backward", boxed<&gradients_meta>());
  library.impl("_rotary_backward", boxed<&rotary_meta>());
}

TORCH_LIBRARY_IMPL(torch_attention, CompositeExplicitAutograd, library) {
  library.impl("block_mask", TORCH_FN(block_mask));
  library.impl("block_mask_hidden", TORCH_FN(block_mask_hidden));
  library.impl("block_mask_sizes", TORCH_FN(block_mask_sizes));
  library.impl("block_mask_density", TORCH_FN(block_mask_density));
}

TORCH_LIBRARY_IMPL(torch_attention, CompositeImplicitAutograd, library) {
  library.impl("scaled_dot_product_attention", boxed<&sdpa>());
  library.impl("_takes", TORCH_FN(takes));
  library.impl("_takes_sdpa", TORCH_FN(takes_sdpa));
  library.impl("_product", TORCH_FN(product));
  library.impl("_in_view", TORCH_FN(in_view));
  library.impl("_out_of_view", TORCH_FN(out_of_view));
}

TORCH_LIBRARY_IMPL(torch_attention, Autograd, library) {
  library.impl("attention", boxed<&attention_autograd>());
  library.impl(
      "attention_with_weights", boxed<&attention_with_weights_autograd>());
  library.impl("rotary", boxed<&rotary_autograd>());
  // Gradients of these are an error that names the operator.
  for (const auto* name :
       {"decode",
        "_attention_forward",
        "_attention_backward",
        "_attention_with_weights_backward",
        "_rotary_backward"}) {
    library.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

TORCH_LIBRARY_IMPL(torch_attention, FuncTorchVmapMode, library) {
  library.impl("attention", boxed<&attention_vmap>());
  library.impl("attention_with_weights", boxed<&attention_with_weights_vmap>());
  library.impl("scaled_dot_product_attention", boxed<&sdpa>());
}

TORCH_LIBRARY_IMPL(torch_attention, ADInplaceOrView, library) {
  library.impl(
      "decode", torch::autograd::autogradNotImplementedInplaceOrViewFallback());
}

TORCH_LIBRARY_IMPL(torch_attention, AutocastCPU, library) {
  add_autocast_kernels(library);
}

TORCH_LIBRARY_IMPL(torch_attention, AutocastCUDA, library) {
  add_autocast_kernels(library);
}

} // namespace torch_attention::operators
