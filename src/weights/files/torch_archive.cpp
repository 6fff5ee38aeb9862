#include <weights/files/torch_archive.h>

#include <weights/files/dtypes.h>
#include <weights/files/pickle.h>
#include <weights/files/records.h>
#include <weights/files/tensor_view.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace torch_attention {

namespace {

using Kind = PickleValue::Kind;

// Far deeper and longer than any model's paths.
constexpr int kMaxDepth = 256;
constexpr size_t kMaxPathLength = 4096;
constexpr size_t kMaxTensors = 1'000'000;

/// Things that lie beside tensors in checkpoints. They are only described.
const std::unordered_set<std::string_view>& harmless_names() {
  static const std::unordered_set<std::string_view> names{
      "__builtin__.bytearray",
      "__builtin__.complex",
      "__builtin__.dict",
      "__builtin__.float",
      "__builtin__.frozenset",
      "__builtin__.int",
      "__builtin__.list",
      "__builtin__.set",
      "_codecs.encode",
      "argparse.Namespace",
      "builtins.bytearray",
      "builtins.complex",
      "builtins.dict",
      "builtins.float",
      "builtins.frozenset",
      "builtins.int",
      "builtins.list",
      "builtins.set",
      "datetime.date",
      "datetime.datetime",
      "datetime.timedelta",
      "numpy._core.multiarray._reconstruct",
      "numpy._core.multiarray.scalar",
      "numpy.core.multiarray._reconstruct",
      "numpy.core.multiarray.scalar",
      "numpy.dtype",
      "numpy.ndarray",
      "pathlib.PosixPath",
      "pathlib.WindowsPath",
      "torch.device",
      "torch.jit._pickle.build_boollist",
      "torch.jit._pickle.build_doublelist",
      "torch.jit._pickle.build_intlist",
      "torch.jit._pickle.build_tensorlist",
      "torch.jit._pickle.restore_type_tag",
      "torch.serialization._get_layout",
      "torch.Tensor",
      "torch.nn.parameter.Buffer",
      "torch.nn.parameter.Parameter",
      "torch.storage.UntypedStorage",
  };
  return names;
}

/// Tensors that we describe, but do not read.
const std::unordered_map<std::string_view, std::string_view>& unread_kinds() {
  static const std::unordered_map<std::string_view, std::string_view> kinds{
      {"torch._utils._rebuild_meta_tensor_no_storage",
       "is a tensor without values (of device meta)"},
      {"torch._utils._rebuild_nested_tensor", "is a nested tensor"},
      {"torch._utils._rebuild_qtensor",
       "is a quantized tensor; call dequantize() on it in Python"},
      {"torch._utils._rebuild_sparse_tensor",
       "is a sparse tensor; call to_dense() on it in Python"},
      {"torch.per_channel_affine", ""},
      {"torch.per_tensor_affine", ""},
      {"torch.sparse_coo", ""},
      {"torch.sparse_csr", ""},
  };
  return kinds;
}

const std::unordered_set<std::string_view>& dict_names() {
  static const std::unordered_set<std::string_view> names{
      "collections.Counter",
      "collections.OrderedDict",
      "collections.defaultdict",
  };
  return names;
}

const std::unordered_set<std::string_view>& tensor_names() {
  static const std::unordered_set<std::string_view> names{
      "torch._tensor._rebuild_from_type_v2",
      "torch._utils._rebuild_parameter",
      "torch._utils._rebuild_parameter_with_state",
      "torch._utils._rebuild_tensor",
      "torch._utils._rebuild_tensor_v2",
      "torch._utils._rebuild_tensor_v3",
  };
  return names;
}

bool is_script_class(std::string_view name) {
  constexpr std::string_view kStart = "__torch__.";
  return name.substr(0, kStart.size()) == kStart;
}

/// "torch.float32", and what other versions of LibTorch may have. Only the
/// names of dtypes begin like this.
bool is_dtype_name(std::string_view name) {
  constexpr std::array<std::string_view, 8> kStarts{
      "torch.bfloat",
      "torch.bits",
      "torch.bool",
      "torch.complex",
      "torch.float",
      "torch.int",
      "torch.qint",
      "torch.uint"};
  return name.find('.', 6) == std::string_view::npos &&
      std::any_of(kStarts.begin(), kStarts.end(), [&](auto start) {
           return name.substr(0, start.size()) == start;
         });
}

bool is_known(std::string_view name, bool is_script) {
  return is_dtype_name(name) || tensor_names().count(name) > 0 ||
      dict_names().count(name) > 0 || harmless_names().count(name) > 0 ||
      unread_kinds().count(name) > 0 || name == "torch.Size" ||
      dtype_from_storage(name) || (is_script && is_script_class(name));
}

/// The folder in which the archive's records lie: that of its first record.
std::string root_folder(const ZipArchive& archive) {
  const auto& names = archive.names();
  if (names.empty()) {
    return "";
  }
  const auto slash = names.front().find('/');
  return slash == std::string::npos ? "" : names.front().substr(0, slash + 1);
}

/// Makes tensors of what the pickle says of them.
class TensorMaker {
 public:
  TensorMaker(const ZipArchive& archive, std::string folder)
      : archive_(archive), folder_(std::move(folder)) {}

  struct Made {
    torch::Tensor tensor;
    /// The record with its elements; empty if it has none.
    std::string record;
    /// Why there is no tensor.
    std::string unreadable;
  };

  /// `call` is one of `tensor_names`.
  Made make(const PickleValue& call, int depth = 0) {
    TORCH_CHECK(
        depth < kMaxDepth, "the file is damaged or malicious: nested too deep");
    const auto name = call.function->text;
    const auto& arguments = call.arguments->items;
    if (name == "torch._utils._rebuild_parameter" ||
        name == "torch._utils._rebuild_parameter_with_state") {
      const auto& data = argument(arguments, 0, Kind::kCall);
      TORCH_CHECK(
          tensor_names().count(data.function->text) > 0,
          "the file is damaged: a parameter that is no tensor");
      return make(data, depth + 1);
    }
    if (name == "torch._tensor._rebuild_from_type_v2") {
      PickleValue inner;
      inner.kind = Kind::kCall;
      inner.function = &argument(arguments, 0, Kind::kGlobal);
      inner.arguments = &argument(arguments, 2, Kind::kTuple);
      TORCH_CHECK(
          tensor_names().count(inner.function->text) > 0,
          "the file is damaged: a tensor made by ",
          inner.function->text);
      return make(inner, depth + 1);
    }
    return make_strided(name, arguments);
  }

 private:
  struct Storage {
    Bytes bytes;
    std::optional<torch::ScalarType> dtype;
    std::string record;
  };
  using Arguments = std::vector<const PickleValue*>;

  static const PickleValue& argument(
      const Arguments& arguments,
      size_t index,
      Kind kind) {
    TORCH_CHECK(
        index < arguments.size() && arguments[index]->kind == kind,
        "the file is damaged: a tensor's description is wrong at argument ",
        index);
    return *arguments[index];
  }

  /// A tuple of integers, or a `torch.Size` of one.
  static std::vector<int64_t> integers(const PickleValue& value) {
    const auto* tuple = &value;
    if (value.kind == Kind::kCall && value.function->text == "torch.Size") {
      tuple = &argument(value.arguments->items, 0, Kind::kTuple);
    }
    std::vector<int64_t> result;
    for (const auto* item : tuple->items) {
      TORCH_CHECK(
          item->kind == Kind::kInteger,
          "the file is damaged: a tensor's shape or strides are no integers");
      result.push_back(item->integer);
    }
    return result;
  }

  Made make_strided(std::string_view name, const Arguments& arguments) {
    TORCH_CHECK(
        arguments.size() >= 4,
        "the file is damaged: a tensor's description has ",
        arguments.size(),
        " arguments");
    const auto& storage =
        this->storage(argument(arguments, 0, Kind::kPersistent));
    TensorLayout layout;
    layout.offset = argument(arguments, 1, Kind::kInteger).integer;
    layout.sizes = integers(*arguments[2]);
    layout.strides = integers(*arguments[3]);
    size_t metadata = 6;
    if (name == "torch._utils._rebuild_tensor_v3") {
      const auto dtype_name = argument(arguments, 6, Kind::kGlobal).text;
      const auto dtype = dtype_from_python(dtype_name);
      if (!dtype) {
        return {{}, {}, fmt::format("has the unknown dtype {}", dtype_name)};
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

  /// Conjugate and negative views keep the elements of what they look at.
  static torch::Tensor with_bits(
      torch::Tensor tensor,
      const PickleValue& metadata) {
    for (size_t i = 0; i + 1 < metadata.items.size(); i += 2) {
      const auto& key = *metadata.items[i];
      const auto& value = *metadata.items[i + 1];
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

  /// The storage that ("storage", class, key, device, number of elements)
  /// means.
  const Storage& storage(const PickleValue& persistent) {
    const auto& tuple = *persistent.arguments;
    TORCH_CHECK(
        tuple.kind == Kind::kTuple,
        "the file is damaged: a storage's description is wrong");
    const auto& arguments = tuple.items;
    const auto& key = argument(arguments, 2, Kind::kText);
    const auto class_name = argument(arguments, 1, Kind::kGlobal).text;
    const auto count = argument(arguments, 4, Kind::kInteger).integer;
    TORCH_CHECK(
        argument(arguments, 3, Kind::kText).text != "meta",
        "the file has tensors without values (of device meta)");
    const auto found = storages_.find(key.text);
    if (found != storages_.end()) {
      check_storage(found->second, class_name, count);
      return found->second;
    }
    Storage storage;
    storage.record = fmt::format("{}data/{}", folder_, key.text);
    // 16: the largest element is a complex number of two doubles.
    storage.bytes = aligned(archive_.find(storage.record), 16);
    storage.dtype = dtype_from_storage(class_name);
    check_storage(storage, class_name, count);
    return storages_.emplace(key.text, std::move(storage)).first->second;
  }

  static void check_storage(
      const Storage& storage,
      std::string_view class_name,
      int64_t count) {
    const auto dtype = dtype_from_storage(class_name);
    TORCH_CHECK(
        (dtype || class_name == "torch.storage.UntypedStorage") &&
            dtype == storage.dtype,
        "the file has a storage of class ",
        class_name,
        ", which is not known");
    const auto item = dtype ? c10::elementSize(*dtype) : 1;
    TORCH_CHECK(
        count >= 0 &&
            static_cast<uint64_t>(count) == storage.bytes.size / item &&
            storage.bytes.size % item == 0,
        "the file is damaged: the storage \"",
        storage.record,
        "\" has ",
        storage.bytes.size,
        " bytes, expected ",
        count,
        " elements of ",
        item);
  }

  const ZipArchive& archive_;
  std::string folder_;
  std::unordered_map<std::string_view, Storage> storages_;
};

bool is_call(
    const PickleValue& value,
    const std::unordered_set<std::string_view>& names) {
  return value.kind == Kind::kCall && names.count(value.function->text) > 0;
}

bool is_dict(const PickleValue& value) {
  return value.kind == Kind::kDict || is_call(value, dict_names());
}

/// A dict's key as a part of a path.
std::string key_text(const PickleValue& key, size_t index) {
  switch (key.kind) {
    case Kind::kText:
      return std::string(key.text);
    case Kind::kInteger:
    case Kind::kBool:
      return std::to_string(key.integer);
    default:
      return fmt::format("?{}", index);
  }
}

/// Walks through the pickle and collects the tensors by their paths.
class Collector {
 public:
  Collector(TensorMaker maker, size_t values, bool is_script)
      : maker_(std::move(maker)),
        // A value may be met on several paths (tied weights), but not on so
        // many that a small file describes a huge tree.
        visits_left_(2 * values + 1000),
        is_script_(is_script) {}

  void collect(const PickleValue& value, const std::string& path, int depth) {
    TORCH_CHECK(
        depth < kMaxDepth && path.size() < kMaxPathLength && visits_left_ > 0,
        "the file is damaged or malicious: its values are nested too deep");
    --visits_left_;
    if (is_call(value, tensor_names())) {
      add_tensor(value, path);
    } else if (is_unread(value)) {
      unreadable.emplace_back(path, unread_kinds().at(value.function->text));
    } else if (is_script_) {
      collect_script(value, path, depth);
    } else if (is_dict(value)) {
      collect_items(value, path, depth);
    } else if (value.kind == Kind::kList || value.kind == Kind::kTuple) {
      collect_list(value, path, depth);
    } else {
      others.push_back(path);
    }
  }

  StateDict tensors;
  RecordNames records;
  std::vector<std::string> others;
  std::vector<std::pair<std::string, std::string>> unreadable;

 private:
  static bool is_unread(const PickleValue& value) {
    return value.kind == Kind::kCall &&
        unread_kinds().count(value.function->text) > 0;
  }

  static std::string join(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }

  void add_tensor(const PickleValue& value, const std::string& path) {
    TORCH_CHECK(
        tensors.size() < kMaxTensors,
        "the file has more than ",
        kMaxTensors,
        " tensors");
    auto made = maker_.make(value);
    if (!made.unreadable.empty()) {
      unreadable.emplace_back(path, std::move(made.unreadable));
      return;
    }
    TORCH_CHECK(
        !tensors.contains(path),
        "the file is damaged or malicious: it has the key \"",
        path,
        "\" twice");
    tensors.insert(path, std::move(made.tensor));
    records.emplace(path, std::move(made.record));
  }

  void collect_items(
      const PickleValue& dict,
      const std::string& path,
      int depth) {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      collect(
          *dict.items[i + 1],
          join(path, key_text(*dict.items[i], i / 2)),
          depth + 1);
    }
  }

  /// A list of numbers is one value; one of tensors is a state dict whose keys
  /// are 0, 1, ...
  void collect_list(
      const PickleValue& list,
      const std::string& path,
      int depth) {
    const bool has_values = std::any_of(
        list.items.begin(), list.items.end(), [](const PickleValue* item) {
          return item->kind == Kind::kCall || item->kind == Kind::kDict ||
              item->kind == Kind::kList || item->kind == Kind::kTuple;
        });
    if (!has_values) {
      others.push_back(path);
      return;
    }
    for (size_t i = 0; i < list.items.size(); ++i) {
      collect(*list.items[i], join(path, std::to_string(i)), depth + 1);
    }
  }

  /// TorchScript's state dict: tensors that are attributes of modules.
  void collect_script(
      const PickleValue& value,
      const std::string& path,
      int depth) {
    if (value.kind != Kind::kObject || !is_script_class(value.function->text)) {
      return;
    }
    if (value.state == nullptr || value.state->kind != Kind::kDict) {
      unreadable.emplace_back(
          path,
          fmt::format(
              "is an object of the class {}, whose own __setstate__ would have "
              "to be run",
              value.function->text));
      return;
    }
    collect_items(*value.state, path, depth);
  }

  TensorMaker maker_;
  size_t visits_left_;
  bool is_script_;
};

bool has_tensors_below(const StateDict& tensors, const std::string& path) {
  const auto start = path + ".";
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& item) {
    return item.key().compare(0, start.size(), start) == 0;
  });
}

/// Finds the state dict among what lies beside it.
void find_root(const PickleValue& value, WeightFile& file) {
  constexpr std::array kNames{
      "state_dict", "model_state_dict", "model", "module", "net", "weights"};
  bool is_state_dict = false;
  std::vector<std::string> dicts;
  for (size_t i = 0; i + 1 < value.items.size(); i += 2) {
    const auto name = key_text(*value.items[i], i / 2);
    is_state_dict = is_state_dict || file.tensors.contains(name);
    if (is_dict(*value.items[i + 1]) && has_tensors_below(file.tensors, name)) {
      dicts.push_back(name);
    }
  }
  std::vector<std::string> known;
  for (const auto* name : kNames) {
    if (std::find(dicts.begin(), dicts.end(), name) != dicts.end()) {
      known.emplace_back(name);
    }
  }
  // A state dict is flat: of a known name, a dict in it is the one meant.
  if (known.empty() && is_state_dict) {
    return;
  }
  const auto& candidates = known.empty() ? dicts : known;
  if (candidates.size() == 1) {
    file.root = candidates.front();
  } else if (candidates.size() > 1) {
    file.ambiguity = fmt::format(
        "the file holds several state dicts: choose one by "
        "LoadOptions().prefix(\"{}\")",
        fmt::join(candidates, "\") or prefix(\""));
  }
}

std::string script_format(const PickleValue& root) {
  return root.kind == Kind::kObject && root.function->text == "__torch__.Module"
      ? "C++ torch::save archive"
      : "TorchScript archive";
}

void check_byte_order(const ZipArchive& archive, const std::string& folder) {
  const auto record = folder + "byteorder";
  TORCH_CHECK(
      !archive.contains(record) || archive.read(record).text() == "little",
      "the file was written on a big-endian machine; save it anew on another: "
      "torch.save(torch.load(path), path)");
}

} // namespace

bool is_torch_archive(const ZipArchive& archive) {
  return archive.contains(root_folder(archive) + "data.pkl");
}

WeightFile read_torch_archive(std::shared_ptr<const ZipArchive> archive) {
  const auto folder = root_folder(*archive);
  check_byte_order(*archive, folder);
  const bool is_script = archive->contains(folder + "constants.pkl");
  const auto bytes = archive->read(folder + "data.pkl");
  const Pickle pickle(bytes.text(), [&](std::string_view name) {
    return is_known(name, is_script);
  });
  TORCH_CHECK(
      !is_call(pickle.root(), tensor_names()),
      "the file holds one tensor, not a state dict. Give it a key in Python: "
      "torch.save({'key': torch.load(path)}, path)");
  Collector collector(TensorMaker(*archive, folder), pickle.size(), is_script);
  collector.collect(pickle.root(), "", 0);

  WeightFile file;
  file.format = is_script ? script_format(pickle.root()) : "torch.save file";
  file.tensors = std::move(collector.tensors);
  file.others = std::move(collector.others);
  file.unreadable = std::move(collector.unreadable);
  if (!is_script && is_dict(pickle.root())) {
    find_root(pickle.root(), file);
  }
  file.check = check_records(
      std::move(archive), std::move(collector.records), file.tensors);
  return file;
}

} // namespace torch_attention
