#include <format_text.h>
#include <weights/files/write.h>

#include <weights/files/atomic_file.h>
#include <weights/files/dtypes.h>
#include <weights/files/tensor_view.h>

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <exception>
#include <map>
#include <tuple>
#include <vector>

namespace torch_attention {

namespace {

/// Writes the operations of a pickle of protocol 2. Nothing is remembered: the
/// file is some bytes longer for it.
class PickleWriter {
 public:
  PickleWriter() {
    text_ += "\x80\x02";
  }

  void global(std::string_view module, std::string_view name) {
    text_ += format_text("c{}\n{}\n", module, name);
  }

  void text(std::string_view value) {
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

  /// Operations without arguments.
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

/// `torch.FloatStorage`'s name for dtypes of before PyTorch 2.1.
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

/// A tensor, contiguous, whose elements are the record `data/<storage>`.
void write_tensor(
    PickleWriter& pickle,
    const torch::Tensor& tensor,
    size_t storage) {
  const auto dtype = tensor.scalar_type();
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
            : tensor.numel() * static_cast<int64_t>(tensor.element_size()));
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

/// Tensors that are one in memory (tied weights) are one in the file.
std::vector<size_t> number_storages(const StateDict& tensors) {
  using Identity =
      std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>, int>;
  std::map<Identity, size_t> numbers;
  std::vector<size_t> result;
  for (const auto& item : tensors) {
    const auto& tensor = item.value();
    const Identity identity{
        // Empty tensors have no place in memory.
        tensor.numel() > 0 ? tensor.data_ptr() : tensor.unsafeGetTensorImpl(),
        tensor.sizes().vec(),
        tensor.strides().vec(),
        static_cast<int>(tensor.scalar_type())};
    result.push_back(numbers.emplace(identity, numbers.size()).first->second);
  }
  return result;
}

} // namespace

void write_torch_archive(
    const StateDict& tensors,
    const std::string& path,
    const Progress& progress) {
  const auto storages = number_storages(tensors);
  PickleWriter pickle;
  pickle.global("collections", "OrderedDict");
  pickle.operations(kEmptyOrderedDict);
  pickle.operations("(");
  for (size_t i = 0; i < tensors.size(); ++i) {
    pickle.text(tensors[i].key());
    write_tensor(pickle, tensors[i].value(), storages[i]);
  }
  pickle.operations("u.");

  AtomicFile file(path);
  std::exception_ptr error;
  // LibTorch's writer calls this from code that knows no exceptions, and its
  // destructor would end the program after an error: it hears of none.
  const auto write = [&](const void* data, size_t size) -> size_t {
    try {
      if (!error) {
        file.write(data, size);
      }
    } catch (...) {
      error = std::current_exception();
    }
    return size;
  };
  {
    caffe2::serialize::PyTorchStreamWriter archive(write);
    const auto record =
        [&](const std::string& name, const void* data, size_t size) {
          archive.writeRecord(name, data, size);
        };
    record("data.pkl", pickle.bytes().data(), pickle.bytes().size());
    record("byteorder", "little", 6);
    size_t next = 0;
    for (size_t i = 0; i < tensors.size() && !error; ++i) {
      if (storages[i] != next) {
        continue; // written before
      }
      const auto values = values_to_write(tensors[i].value());
      const auto size = static_cast<size_t>(values.nbytes());
      record(format_text("data/{}", next), values.data_ptr(), size);
      ++next;
      if (progress) {
        progress(size);
      }
    }
    archive.writeEndOfFile();
  }
  if (error) {
    std::rethrow_exception(error);
  }
  file.commit();
}

} // namespace torch_attention
