#include <weights/files/gguf.h>

#include <check.h>
#include <format_text.h>
#include <weights/files/gguf_changes.h>
#include <weights/files/gguf_header.h>
#include <weights/files/tensor_view.h>
#include <weights/quantized/ggml_blocks.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

namespace torch_attention::weights::files {

namespace {

using quantized::ggml_type;
using quantized::GgmlType;

/// A tensor with its bytes.
struct GgufTensor {
  const GgufHeader::Tensor* header = nullptr;
  /// Null if the type is not known. Then there are no bytes.
  const GgmlType* type = nullptr;
  Bytes bytes;
};

/// Returns LibTorch's dtype of a type whose values are stored one by one; none
/// for other types.
std::optional<torch::ScalarType> dtype_of(const GgmlType& type) {
  static const std::unordered_map<std::string_view, torch::ScalarType> dtypes{
      {"F16", torch::kHalf},
      {"BF16", torch::kBFloat16},
      {"F32", torch::kFloat},
      {"F64", torch::kDouble},
      {"I8", torch::kChar},
      {"I16", torch::kShort},
      {"I32", torch::kInt},
      {"I64", torch::kLong}};
  const auto found = dtypes.find(type.name);
  return found == dtypes.end() ? std::nullopt
                               : std::make_optional(found->second);
}

int64_t row_length(const GgufHeader::Tensor& tensor) {
  return tensor.shape.empty() ? 1 : tensor.shape.back();
}

/// Returns the number of bytes of a tensor. Fails if its rows are not whole
/// blocks, or if the number overflows.
uint64_t bytes_of(const GgufHeader::Tensor& tensor, const GgmlType& type) {
  const auto length = row_length(tensor);
  if (length % type.values != 0) {
    fail_as_gguf(format_text(
        "\"{}\" of the type {} has rows of {} values, which are not whole "
        "blocks of {}",
        tensor.name,
        type.name,
        length,
        type.values));
  }
  // Fails if the number of elements overflows.
  contiguous_strides(tensor.shape);
  int64_t elements = 1;
  for (const auto size : tensor.shape) {
    elements *= size;
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(elements / type.values, type.bytes, &bytes)) {
    fail_as_gguf(format_text(
        "\"{}\" has the shape ({})",
        tensor.name,
        fmt::join(tensor.shape, ", ")));
  }
  return static_cast<uint64_t>(bytes);
}

/// Fails unless a tensor begins where the previous one and its padding end, as
/// llama.cpp requires too.
void check_begin(
    const GgufHeader::Tensor& tensor,
    uint64_t end,
    bool is_end_known,
    uint64_t alignment) {
  // The end is inside the file, so there is no overflow.
  const auto expected = (end + alignment - 1) / alignment * alignment;
  if (tensor.offset % alignment != 0 || tensor.offset < expected ||
      (is_end_known && tensor.offset != expected)) {
    fail_as_gguf(format_text(
        "the data of \"{}\" begin at byte {}, expected {}",
        tensor.name,
        tensor.offset,
        expected));
  }
}

/// Finds the bytes of all tensors, in the header's order. Fails if they
/// overlap, have holes or are not all there.
std::vector<GgufTensor> find_bytes(const GgufHeader& header) {
  const auto data = header.data();
  std::vector<GgufTensor> tensors;
  std::vector<size_t> order;
  for (const auto& tensor : header.tensors()) {
    order.push_back(tensors.size());
    tensors.push_back({&tensor, ggml_type(tensor.type), {}});
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tensors[a].header->offset < tensors[b].header->offset;
  });
  uint64_t end = 0;
  bool is_end_known = true;
  for (const auto i : order) {
    auto& [tensor, type, bytes] = tensors[i];
    check_begin(*tensor, end, is_end_known, header.alignment());
    const auto size = type == nullptr ? 0 : bytes_of(*tensor, *type);
    if (tensor->offset > data.size || size > data.size - tensor->offset) {
      fail_as_gguf(format_text(
          "\"{}\" has {} bytes from byte {} of the data, but these have {}; it "
          "is cut short",
          tensor->name,
          size,
          tensor->offset,
          data.size));
    }
    bytes = data.part(tensor->offset, size);
    end = tensor->offset + size;
    is_end_known = type != nullptr;
  }
  return tensors;
}

/// Returns the values of a tensor that the file has as the model.
StoredValues stored_values(const GgufTensor& tensor) {
  const auto* type = tensor.type;
  StoredValues values;
  values.form = type->name;
  values.shape = tensor.header->shape;
  values.bytes = tensor.bytes.size;
  values.source = {tensor.bytes};
  values.decode = floats_by([type, bytes = tensor.bytes](float* out) {
    const auto blocks = static_cast<int64_t>(bytes.size) / type->bytes;
    type->decode(bytes.data, blocks, out);
  });
  return values;
}

/// Returns the values of a tensor whose rows are permuted in the file.
StoredValues permuted_values(
    const GgufTensor& tensor,
    const GgufChange& change) {
  auto values = stored_values(tensor);
  if (tensor.type->values == 1) {
    values.form += ", rows permuted";
  }
  const auto rows = values.shape.front();
  const auto length = values.shape.size() == 1 ? 1 : values.shape.back();
  values.decode = floats_by([=, type = tensor.type, bytes = tensor.bytes](
                                float* out) {
    const auto blocks = length / type->values;
    for (int64_t row = 0; row < rows; ++row) {
      const auto from = stored_row(change, row);
      type->decode(
          bytes.data + from * blocks * type->bytes, blocks, out + row * length);
    }
  });
  return values;
}

/// Returns the values of an F32 tensor before 1 was added to them.
StoredValues values_less_one(const GgufTensor& tensor) {
  auto values = stored_values(tensor);
  values.form += ", 1 added";
  values.decode =
      floats_by([decode = values.decode,
                 count = static_cast<int64_t>(
                     tensor.bytes.size / sizeof(float))](float* out) {
        decode(out);
        for (int64_t i = 0; i < count; ++i) {
          out[i] -= 1;
        }
      });
  return values;
}

/// Fails unless adding 1 again gives the values in the file.
void check_less_one(const std::string& key, const Bytes& bytes) {
  for (size_t i = 0; i + sizeof(float) <= bytes.size; i += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, bytes.data + i, sizeof(value));
    const float without = value - 1;
    TORCH_ATTENTION_CHECK(
        without + 1 == value,
        "\"{}\" of the file has the value {}, from which 1 cannot be "
        "subtracted exactly; the converter adds 1 to it",
        key,
        value);
  }
}

/// Returns why a tensor cannot be read; empty if it can.
std::string why_unreadable(const GgufTensor& tensor, const GgufChange& change) {
  if (tensor.type == nullptr) {
    return format_text(
        "has ggml's type of the number {}, which is not known",
        tensor.header->type);
  }
  if (change.kind == GgufChange::Kind::kRefused) {
    return change.reason;
  }
  const auto& type = *tensor.type;
  const bool is_decoded = type.decode != nullptr;
  if (!is_decoded && !dtype_of(type)) {
    return format_text(
        "has the type {} of ggml, whose values are not computed", type.name);
  }
  const bool is_bias = tensor.header->shape.size() == 1;
  if (change.kind == GgufChange::Kind::kPermuted &&
      (!is_decoded || (is_bias && type.values != 1))) {
    return format_text(
        "has permuted rows, which are not read of the type {}", type.name);
  }
  return "";
}

torch::Tensor make_tensor(
    const GgufTensor& tensor,
    const GgufChange& change,
    StoredTensors& stored) {
  switch (change.kind) {
    case GgufChange::Kind::kPermuted:
      return stored.add(permuted_values(tensor, change));
    case GgufChange::Kind::kOneAdded:
      return stored.add(values_less_one(tensor));
    case GgufChange::Kind::kNone:
    case GgufChange::Kind::kRefused:
      break;
  }
  const auto dtype = dtype_of(*tensor.type);
  if (!dtype) {
    return stored.add(stored_values(tensor));
  }
  const auto& shape = tensor.header->shape;
  return view_tensor(
      aligned(tensor.bytes, c10::elementSize(*dtype)),
      {*dtype, shape, contiguous_strides(shape), 0});
}

} // namespace

bool is_gguf(const Bytes& file) {
  return starts_with(file.text(), "GGUF");
}

GgufHeader read_gguf_header(const Bytes& file) {
  GgufHeader header(file);
  const auto parts = header.integer("split.count").value_or(0);
  TORCH_ATTENTION_CHECK(
      parts <= 1,
      "the file is one of the {} parts of a GGUF file, which are not read. "
      "Merge them by llama.cpp's program: llama-gguf-split --merge FIRST_PART "
      "MERGED",
      parts);
  return header;
}

WeightFile read_gguf(const Bytes& file) {
  const auto header = read_gguf_header(file);
  const GgufChanges changes(header);
  WeightFile result;
  result.format = "GGUF file";
  std::unordered_map<std::string, Bytes> less_one;
  for (const auto& tensor : find_bytes(header)) {
    const std::string key(tensor.header->name);
    const auto change = changes.find(*tensor.header);
    auto why = why_unreadable(tensor, change);
    if (!why.empty()) {
      result.unreadable.emplace_back(key, std::move(why));
      continue;
    }
    result.tensors.insert(key, make_tensor(tensor, change, result.stored));
    if (change.kind == GgufChange::Kind::kOneAdded) {
      less_one.emplace(key, tensor.bytes);
    }
  }
  result.check =
      [less_one = std::move(less_one)](const std::vector<std::string>& keys) {
        for (const auto& key : keys) {
          const auto found = less_one.find(key);
          if (found != less_one.end()) {
            check_less_one(key, found->second);
          }
        }
      };
  return result;
}

} // namespace torch_attention::weights::files
