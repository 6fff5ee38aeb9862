#pragma once

/// Our operators in LibTorch's dispatcher, for TorchScript, Python and
/// AOTInductor. The schemas are in library.cpp, described for users in
/// docs/python.md.
///
/// Kernels are boxed: they read their arguments from a stack, which is how
/// TorchScript and Python pass them.
namespace torch_attention::operators {

/// The name of the operator that computes attention. Whoever calls it links the
/// operators.
const char* attention_name();

/// That of the operator with the arguments of LibTorch's
/// `scaled_dot_product_attention`.
const char* sdpa_name();

/// Those of the operators that tell swapped models what ours compute
/// (takes.h).
const char* takes_name();
const char* takes_sdpa_name();
const char* product_name();

/// Those of the operators behind views of scores (viewed_scores.h).
const char* in_view_name();
const char* out_of_view_name();

} // namespace torch_attention::operators
