#include <weights/files/tensor_maker.h>

#include <check.h>
#include <format_text.h>
#include <weights/files/dtypes.h>
#include <weights/files/pickle_names.h>
#include <weights/files/tensor_view.h>

#include <c10/util/Exception.h>

#include <utility>

namespace torch_attention::weights::files {

namespace {

using Kind = PickleValue::Kind;
using Arguments = std::vector<const PickleValue*>;

constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";

// No real file wraps a tensor (as a parameter, in a subclass) more deeply.
constexpr int kMaxWrappers = 16;

const PickleValue& argument(
    const Arguments& arguments,
    size_t index,
    Kind kind) {
  TORCH_ATTENTION_CHECK(
      index < arguments.size() && arguments[index]->kind == kind,
      "the file is damaged: a tensor's description is wrong at argument {}",
      index);
  return *arguments[index];
}

/// Returns the integers of a tuple or a `torch.Size`.
std::vector<int64_t> integers(const PickleValue& value) {
  const auto* tuple = &value;
  if (value.function_name() == "torch.Size") {
    tuple = &argument(value.arguments()->items(), 0, Kind::kTuple);
  }
  std::vector<int64_t> result;
  for (const auto* item : tuple->items()) {
    TORCH_CHECK(
        item->kind == Kind::kInteger,
        "the file is damaged: a tensor's shape or strides are no integers");
    result.push_back(item->integer);
  }
  return result;
}

/// Returns ("storage", class, key, device, number of elements).
const Arguments& storage_description(const PickleValue& persistent) {
  const auto& tuple = *persistent.arguments();
  TORCH_CHECK(
      tuple.kind == Kind::kTuple,
      "the file is damaged: a storage's description is wrong");
  return tuple.items();
}

/// Returns why a tensor of the storage cannot be read, or "".
std::string why_no_storage(const PickleValue& persistent) {
  const auto& arguments = storage_description(persistent);
  if (argument(arguments, 3, Kind::kText).text == "meta") {
    return "is a tensor without values (of device meta)";
  }
  const auto class_name = argument(arguments, 1, Kind::kGlobal).text;
  return dtype_from_storage(class_name) || class_name == kUntyped
      ? std::string()
      : format_text(
            "has a storage of the class {}, which is not known", class_name);
}

bool is_strided(std::string_view function) {
  return function == "torch._utils._rebuild_tensor" ||
      function == "torch._utils._rebuild_tensor_v2" ||
      function == "torch._utils._rebuild_tensor_v3";
}

/// Applies the conjugate and negative bits in `metadata`: such views are stored
/// with the elements of the tensor that they view.
torch::Tensor with_bits(torch::Tensor tensor, const PickleValue& metadata) {
  const auto& items = metadata.items();
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto& key = *items[i];
    const auto& value = *items[i + 1];
    if (value.kind != Kind::kBool || value.integer == 0) {
      continue;
    }
    if (key.text == "conj" && tensor.is_complex()) {
      tensor = tensor.conj();
    } else if (key.text == "neg") {
      tensor = tensor._neg_view();
    }
  }
  return tensor;
}

/// Checks that storages of the class have this dtype, and that `bytes` hold
/// `count` elements of it.
void check_storage(
    const std::string& record,
    const Bytes& bytes,
    std::optional<torch::ScalarType> dtype,
    std::string_view class_name,
    int64_t count) {
  const auto own_dtype = dtype_from_storage(class_name);
  TORCH_ATTENTION_CHECK(
      own_dtype == dtype,
      "the file is damaged: the storage \"{}\" is also of the class {}",
      record,
      class_name);
  const auto item = dtype ? c10::elementSize(*dtype) : 1;
  TORCH_ATTENTION_CHECK(
      count >= 0 && static_cast<uint64_t>(count) == bytes.size / item &&
          bytes.size % item == 0,
      "the file is damaged: the storage \"{}\" has {} bytes, expected {} "
      "elements of {}",
      record,
      bytes.size,
      count,
      item);
}

} // namespace

TensorMaker::TensorMaker(const ZipArchive& archive, std::string folder)
    : archive_(archive), folder_(std::move(folder)) {}

TensorMaker::Made TensorMaker::make(const PickleValue& call) {
  return make(call, 0);
}

TensorMaker::Made TensorMaker::make(const PickleValue& call, int depth) {
  TORCH_CHECK(
      depth < kMaxWrappers,
      "the file is damaged or malicious: a parameter of a parameter");
  auto reason = why_unread(call);
  if (!reason.empty()) {
    return {{}, {}, std::move(reason)};
  }
  const auto function = call.function_name();
  if (!makes_tensor(function)) {
    return {{}, {}, format_text("is a tensor that \"{}\" makes", function)};
  }
  const auto& arguments = call.arguments()->items();
  if (function == "torch._utils._rebuild_parameter" ||
      function == "torch._utils._rebuild_parameter_with_state") {
    return make(argument(arguments, 0, Kind::kCall), depth + 1);
  }
  if (function == "torch._tensor._rebuild_from_type_v2") {
    const auto inner = argument(arguments, 0, Kind::kGlobal).text;
    const auto& values = argument(arguments, 2, Kind::kTuple).items();
    return is_strided(inner)
        ? make_by(inner, values)
        : Made{{}, {}, format_text("is a tensor that \"{}\" makes", inner)};
  }
  return make_by(function, arguments);
}

/// Makes a tensor from a storage, an offset, sizes and strides.
TensorMaker::Made TensorMaker::make_by(
    std::string_view function,
    const Arguments& arguments) {
  TORCH_ATTENTION_CHECK(
      arguments.size() >= 4,
      "the file is damaged: a tensor's description has {} arguments",
      arguments.size());
  const auto& described = argument(arguments, 0, Kind::kPersistent);
  auto reason = why_no_storage(described);
  if (!reason.empty()) {
    return {{}, {}, std::move(reason)};
  }
  const auto& storage = this->storage(described);
  TensorLayout layout;
  layout.offset = argument(arguments, 1, Kind::kInteger).integer;
  layout.sizes = integers(*arguments[2]);
  layout.strides = integers(*arguments[3]);
  size_t metadata = 6;
  if (function == "torch._utils._rebuild_tensor_v3") {
    const auto dtype_name = argument(arguments, 6, Kind::kGlobal).text;
    const auto dtype = dtype_from_python(dtype_name);
    if (!dtype) {
      return {{}, {}, format_text("has the unknown dtype {}", dtype_name)};
    }
    layout.dtype = *dtype;
    metadata = 7;
  } else {
    TORCH_CHECK(storage.dtype, "the file is damaged: a tensor has no dtype");
    layout.dtype = *storage.dtype;
  }
  auto tensor = view_tensor(storage.bytes, layout);
  if (metadata < arguments.size()) {
    tensor = with_bits(tensor, *arguments[metadata]);
  }
  return {tensor, tensor.numel() > 0 ? storage.record : "", {}};
}

/// Returns the storage for ("storage", class, key, device, number of elements).
const TensorMaker::Storage& TensorMaker::storage(
    const PickleValue& persistent) {
  const auto& arguments = storage_description(persistent);
  const auto key = argument(arguments, 2, Kind::kText).text;
  const auto class_name = argument(arguments, 1, Kind::kGlobal).text;
  const auto count = argument(arguments, 4, Kind::kInteger).integer;
  auto found = storages_.find(key);
  if (found == storages_.end()) {
    Storage storage;
    storage.record = format_text("{}data/{}", folder_, key);
    // The largest element is a complex number of two doubles: 16 bytes.
    storage.bytes = aligned(archive_.find(storage.record), 16);
    storage.dtype = dtype_from_storage(class_name);
    found = storages_.emplace(key, std::move(storage)).first;
  }
  const auto& storage = found->second;
  check_storage(
      storage.record, storage.bytes, storage.dtype, class_name, count);
  return storage;
}

} // namespace torch_attention::weights::files
