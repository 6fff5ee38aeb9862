#include <weights/files/write.h>

#include <check.h>
#include <weights/files/dtypes.h>
#include <weights/files/weight_file.h>
#include <weights/text.h>

#include <ATen/EmptyTensor.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

namespace torch_attention::weights::files {

namespace {

/// Returns the name as a JSON string. Bytes that are not UTF-8 become U+FFFD.
std::string quoted(const std::string& name) {
  return nlohmann::json(name).dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Returns why a tensor's values cannot be written; "" if they can.
std::string obstacle(const torch::Tensor& tensor) {
  if (!tensor.defined()) {
    return "is undefined";
  }
  // A wrapper has the properties of the tensor inside it.
  const auto keys = tensor.unsafeGetTensorImpl()->key_set();
  if (keys.has_any(at::kFunctorchWrappedTensors) ||
      keys.has(c10::DispatchKey::Python)) {
    return "is wrapped by a transformation (functorch, functionalize); its "
           "values are known only when that is over";
  }
  if (tensor.unsafeGetTensorImpl()->is_nested()) {
    return "is a nested tensor; write its parts (unbind())";
  }
  if (tensor.is_quantized()) {
    return "is a quantized tensor; call dequantize() on it";
  }
  if (tensor.layout() != torch::kStrided) {
    return tensor.is_mkldnn() ? "is an MKL-DNN tensor; call to_dense() on it"
                              : "is a sparse tensor; call to_dense() on it";
  }
  if (tensor.is_meta()) {
    return "is a tensor without values (of device meta)";
  }
  // The storage may have been freed to save memory.
  const auto needed = at::detail::computeStorageNbytes(
      tensor.sizes(),
      tensor.strides(),
      tensor.element_size(),
      static_cast<size_t>(tensor.storage_offset()));
  if (tensor.numel() > 0 && !tensor._is_zerotensor() &&
      tensor.storage().nbytes() < needed) {
    return c10::str(
        "needs ",
        needed,
        " bytes, but its storage has ",
        tensor.storage().nbytes());
  }
  return "";
}

FileFormat format_of(const std::string& path) {
  if (ends_with(path, ".safetensors")) {
    return FileFormat::kSafetensors;
  }
  TORCH_ATTENTION_CHECK(
      ends_with(path, ".pt") || ends_with(path, ".pth") ||
          ends_with(path, ".bin"),
      "expected a file name that ends with .safetensors, .pt, .pth or "
      ".bin, but got \"{}\"",
      path);
  return FileFormat::kTorch;
}

} // namespace

std::string json_text(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    TORCH_ATTENTION_CHECK(
        false, "{} is not UTF-8, as all text in files is", quoted(text));
  }
}

void check_writable(const std::string& name, const torch::Tensor& tensor) {
  static_cast<void>(json_text(name));
  check_key_length(name);
  const auto reason = obstacle(tensor);
  TORCH_ATTENTION_CHECK(reason.empty(), "{} {}", quoted(name), reason);
  const auto dtype = tensor.scalar_type();
  TORCH_ATTENTION_CHECK(
      dtype_from_python(c10::str("torch.", python_dtype(dtype))) == dtype,
      "{} has the dtype {}, which no file of weights has",
      quoted(name),
      torch::toString(dtype));
}

torch::ScalarType written_dtype(
    const torch::Tensor& tensor,
    const WriteOptions& options) {
  return options.dtype() && tensor.is_floating_point() ? *options.dtype()
                                                       : tensor.scalar_type();
}

ValuesToWrite::ValuesToWrite(
    const torch::Tensor& tensor,
    const WriteOptions& options,
    const StoredTensors& stored)
    : stored_tensor_(tensor), stored_(stored) {
  stored_.fill(tensor);
  // Zeros without memory would remain so in the conversions below.
  const auto values = tensor._is_zerotensor()
      ? at::zeros(tensor.sizes(), torch::dtype(tensor.scalar_type()))
      : tensor.detach();
  values_ = values.to(torch::kCPU, written_dtype(tensor, options))
                .contiguous()
                .resolve_conj()
                .resolve_neg();
}

ValuesToWrite::~ValuesToWrite() {
  stored_.release(stored_tensor_);
}

void write_weight_file(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options,
    const StoredTensors& stored) {
  const auto format = options.format() == FileFormat::kByExtension
      ? format_of(path)
      : options.format();
  if (format == FileFormat::kSafetensors) {
    write_safetensors(tensors, path, options, stored);
  } else {
    write_torch_archive(tensors, path, options, stored);
  }
}

} // namespace torch_attention::weights::files
