#pragma once

#include <cstddef>
#include <cstdint>

/// The C interface of ONNX Runtime GenAI (MIT licence), as much of it as reads
/// a tokenizer.json. Its package on PyPI has the library, but no header.
namespace torch_attention::tools {

/// Opaque types, as in `ort_genai_c.h`.
struct OgaResult;
struct OgaSequences;
struct OgaTokenizer;

/// The library's functions. Those that return an OgaResult return null unless
/// they failed.
struct GenaiLibrary {
  OgaResult* (*OgaCreateTokenizerFromPath)(const char*, OgaTokenizer**);
  void (*OgaDestroyTokenizer)(OgaTokenizer*);
  OgaResult* (*OgaCreateSequences)(OgaSequences**);
  void (*OgaDestroySequences)(OgaSequences*);
  OgaResult* (
      *OgaTokenizerEncode)(const OgaTokenizer*, const char*, OgaSequences*);
  size_t (*OgaSequencesGetSequenceCount)(const OgaSequences*, size_t);
  const int32_t* (*OgaSequencesGetSequenceData)(const OgaSequences*, size_t);
  const char* (*OgaResultGetError)(const OgaResult*);
  void (*OgaDestroyResult)(OgaResult*);

  /// Throws c10::Error if a function failed.
  void check(OgaResult* result) const;
};

/// Loads the library, once. Looks for the packages onnxruntime and
/// onnxruntime_genai in the folder that TORCH_ATTENTION_PYTHON_PACKAGES names,
/// beside the package of the LibTorch in use, and in the active virtual
/// environment; then where the system has libraries.
///
/// Throws c10::Error, which says how to install it, if it is in none of them.
const GenaiLibrary& genai_library();

} // namespace torch_attention::tools
