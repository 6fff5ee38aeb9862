#include <weights/files/write.h>

#include <atomic_file.h>
#include <check.h>
#include <format_text.h>
#include <weights/files/dtypes.h>
#include <weights/files/tensor_view.h>
#include <weights/files/zip_writer.h>

#include <c10/util/Exception.h>

#include <limits>
#include <map>
#include <tuple>
#include <vector>

namespace torch_attention::weights::files {

namespace {

/// Writes the operations of a pickle of protocol 2. Without the memo, the file
/// is only a few bytes longer.
class PickleWriter {
 public:
  PickleWriter() {
    text_ += "\x80\x02";
  }

  void global(std::string_view module, std::string_view name) {
    text_ += format_text("c{}\n{}\n", module, name);
  }

  void text(std::string_view value) {
    TORCH_ATTENTION_CHECK(
        value.size() <= std::numeric_limits<uint32_t>::max(),
        "a name of {} bytes is longer than torch.save's format allows",
        value.size());
    text_ += 'X';
    number(static_cast<uint32_t>(value.size()));
    text_ += value;
  }

  void integer(int64_t value) {
    text_ += "\x8a\x08";
    number(value);
  }

  void integers(c10::IntArrayRef values) {
    text_ += '(';
    for (const auto value : values) {
      integer(value);
    }
    text_ += 't';
  }

  /// Appends operations without arguments.
  void operations(std::string_view codes) {
    text_ += codes;
  }

  const std::string& bytes() const {
    return text_;
  }

 private:
  template <typename T>
  void number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  std::string text_;
};

constexpr const char* kEmptyOrderedDict = ")R";

/// Returns whether there is a class such as `torch.FloatStorage`, as for the
/// dtypes from before PyTorch 2.1.
bool has_storage_class(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kBool:
    case torch::kByte:
    case torch::kChar:
    case torch::kShort:
    case torch::kInt:
    case torch::kLong:
    case torch::kHalf:
    case torch::kBFloat16:
    case torch::kFloat:
    case torch::kDouble:
    case torch::kComplexFloat:
    case torch::kComplexDouble:
      return true;
    default:
      return false;
  }
}

/// Writes a contiguous tensor with its elements in the record `data/<storage>`.
void write_tensor(
    PickleWriter& pickle,
    const torch::Tensor& tensor,
    torch::ScalarType dtype,
    size_t storage) {
  const bool typed = has_storage_class(dtype);
  pickle.global(
      "torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  pickle.operations("((");
  pickle.text("storage");
  if (typed) {
    pickle.global("torch", format_text("{}Storage", torch::toString(dtype)));
  } else {
    pickle.global("torch.storage", "UntypedStorage");
  }
  pickle.text(std::to_string(storage));
  pickle.text("cpu");
  pickle.integer(
      typed ? tensor.numel()
            : tensor.numel() * static_cast<int64_t>(c10::elementSize(dtype)));
  pickle.operations("tQ");
  pickle.integer(0);
  pickle.integers(tensor.sizes());
  pickle.integers(contiguous_strides(tensor.sizes().vec()));
  pickle.operations("\x89"); // requires_grad: False
  pickle.global("collections", "OrderedDict");
  pickle.operations(kEmptyOrderedDict);
  if (!typed) {
    pickle.global("torch", python_dtype(dtype));
  }
  pickle.operations("tR");
}

/// Returns the number of each tensor's record. Tensors that are the same in
/// memory (tied weights) share a record. Tensors that read the same memory
/// differently, such as conjugate or negative views, do not.
std::vector<size_t> number_storages(const StateDict& tensors) {
  using Identity = std::tuple<
      const void*,
      std::vector<int64_t>,
      std::vector<int64_t>,
      torch::ScalarType,
      bool,
      bool,
      std::string>;
  std::map<Identity, size_t> numbers;
  std::vector<size_t> result;
  for (const auto& item : tensors) {
    const auto& tensor = item.value();
    const Identity identity{
        // Empty tensors have no address.
        tensor.numel() > 0 ? tensor.data_ptr() : tensor.unsafeGetTensorImpl(),
        tensor.sizes().vec(),
        tensor.strides().vec(),
        tensor.scalar_type(),
        tensor.is_conj(),
        tensor.is_neg(),
        // Addresses of different devices may be equal.
        tensor.device().str()};
    result.push_back(numbers.emplace(identity, numbers.size()).first->second);
  }
  return result;
}

} // namespace

void write_torch_archive(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options,
    const StoredTensors& stored) {
  TORCH_CHECK(
      options.metadata().empty(),
      "torch.save's format has no place for metadata; safetensors has");
  for (const auto& item : tensors) {
    check_writable(item.key(), item.value());
  }
  const auto storages = number_storages(tensors);
  PickleWriter pickle;
  pickle.global("collections", "OrderedDict");
  pickle.operations(kEmptyOrderedDict);
  pickle.operations("(");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i].value();
    pickle.text(tensors[i].key());
    write_tensor(pickle, tensor, written_dtype(tensor, options), storages[i]);
  }
  pickle.operations("u.");

  AtomicFile file(path);
  ZipWriter archive(file);
  const auto add = [&](std::string_view name, std::string_view bytes) {
    archive.add(format_text("archive/{}", name), bytes.data(), bytes.size());
  };
  add("data.pkl", pickle.bytes());
  add("byteorder", "little");
  size_t next = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (storages[i] != next) {
      continue; // written before
    }
    const ValuesToWrite values(tensors[i].value(), options, stored);
    const auto size = static_cast<size_t>(values.tensor().nbytes());
    archive.add(
        format_text("archive/data/{}", next), values.tensor().data_ptr(), size);
    ++next;
    if (options.progress()) {
      options.progress()(size);
    }
  }
  add("version", "3\n");
  archive.finish();
  file.commit();
}

} // namespace torch_attention::weights::files
