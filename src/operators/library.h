#pragma once

/// Our operators in LibTorch's dispatcher, for TorchScript, Python and
/// AOTInductor. library.cpp has the schemas, and docs/python.md describes them.
///
/// The kernels are boxed: they read their arguments from a stack, as
/// TorchScript and Python pass them.
namespace torch_attention::operators {

/// Returns the name of the operator that computes attention. A call of this
/// function also makes the linker keep the operators.
const char* attention_name();

/// Returns the name of the operator with the arguments of LibTorch's
/// `scaled_dot_product_attention`.
const char* sdpa_name();

/// Return the names of the operators by which swapped models check whether ours
/// can compute a call (takes.h).
const char* takes_name();
const char* takes_sdpa_name();
const char* product_name();

/// Return the names of the operators for scores that a model views
/// (viewed_scores.h).
const char* in_view_name();
const char* out_of_view_name();

} // namespace torch_attention::operators
