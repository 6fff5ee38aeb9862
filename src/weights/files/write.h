#pragma once

#include <torch_attention/weights/write.h>

#include <weights/files/stored_values.h>
#include <weights/state_dict.h>

#include <string>

namespace torch_attention::weights::files {

/// Returns the text as a JSON string, in quotes. Throws c10::Error if it is not
/// UTF-8, the only encoding that Python reads.
std::string json_text(const std::string& text);

/// Throws c10::Error, which names the tensor, unless it is a strided tensor
/// with values: not sparse, quantized, nested or on the device meta.
void check_writable(const std::string& name, const torch::Tensor& tensor);

/// Returns the dtype in which a tensor is written.
torch::ScalarType written_dtype(
    const torch::Tensor& tensor,
    const WriteOptions& options);

/// The values of a tensor as they are written. Those of one in `stored` are
/// computed, and their memory is given back at the end.
class ValuesToWrite {
 public:
  ValuesToWrite(
      const torch::Tensor& tensor,
      const WriteOptions& options,
      const StoredTensors& stored);
  ~ValuesToWrite();
  ValuesToWrite(const ValuesToWrite&) = delete;
  ValuesToWrite& operator=(const ValuesToWrite&) = delete;
  ValuesToWrite(ValuesToWrite&&) = delete;
  ValuesToWrite& operator=(ValuesToWrite&&) = delete;

  /// Contiguous, on the CPU.
  const torch::Tensor& tensor() const {
    return values_;
  }

 private:
  const torch::Tensor& stored_tensor_;
  const StoredTensors& stored_;
  torch::Tensor values_;
};

/// Writes a safetensors file with a CRC-32 of each tensor in `__metadata__`. If
/// it throws, the old file has not changed.
void write_safetensors(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options = {},
    const StoredTensors& stored = {});

/// Writes a zip file like Python's `torch.save(OrderedDict(...), path)`. If it
/// throws, the old file has not changed.
void write_torch_archive(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options = {},
    const StoredTensors& stored = {});

/// Writes the format chosen by the options or by the extension of `path`.
void write_weight_file(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options = {},
    const StoredTensors& stored = {});

} // namespace torch_attention::weights::files
