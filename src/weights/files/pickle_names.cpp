#include <weights/files/pickle_names.h>

#include <check.h>
#include <format_text.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

namespace torch_attention::weights::files {

namespace {

using Kind = PickleValue::Kind;

/// Returns the names of classes and functions for plain data.
const std::unordered_set<std::string_view>& plain_names() {
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
      "torch.Size",
      "torch.device",
      "torch.jit._pickle.build_boollist",
      "torch.jit._pickle.build_doublelist",
      "torch.jit._pickle.build_intlist",
      "torch.jit._pickle.build_tensorlist",
      "torch.jit._pickle.restore_type_tag",
      "torch.serialization._get_layout",
  };
  return names;
}

/// Returns the functions that make tensors of unsupported kinds, and why.
const std::unordered_map<std::string_view, std::string_view>& unread_kinds() {
  static const std::unordered_map<std::string_view, std::string_view> kinds{
      {"torch._utils._rebuild_device_tensor_from_cpu_tensor",
       "is a tensor of another device; call cpu() on it in Python"},
      {"torch._utils._rebuild_device_tensor_from_numpy",
       "is a tensor of another device; call cpu() on it in Python"},
      {"torch._utils._rebuild_meta_tensor_no_storage",
       "is a tensor without values (of device meta)"},
      {"torch._utils._rebuild_nested_tensor",
       "is a nested tensor; call to_padded_tensor() or unbind() on it in "
       "Python"},
      {"torch._utils._rebuild_qtensor",
       "is a quantized tensor; call dequantize() on it in Python"},
      {"torch._utils._rebuild_sparse_csr_tensor",
       "is a sparse tensor; call to_dense() on it in Python"},
      {"torch._utils._rebuild_sparse_tensor",
       "is a sparse tensor; call to_dense() on it in Python"},
      {"torch.nested._internal.nested_tensor._rebuild_njt",
       "is a nested tensor; call to_padded_tensor() or unbind() on it in "
       "Python"},
      {"torch.nn.parameter.UninitializedBuffer",
       "is not initialized: it has no values"},
      {"torch.nn.parameter.UninitializedParameter",
       "is not initialized: it has no values"},
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

/// Returns whether the name begins with one of `starts`.
template <size_t N>
bool begins_with_any(
    std::string_view name,
    const std::array<std::string_view, N>& starts) {
  return std::any_of(starts.begin(), starts.end(), [&](auto start) {
    return name.substr(0, start.size()) == start;
  });
}

/// Returns whether the name belongs to plain data or to a dict.
bool plain(std::string_view name) {
  return plain_names().count(name) > 0 || dict_names().count(name) > 0;
}

bool is_call(
    const PickleValue& value,
    const std::unordered_set<std::string_view>& functions) {
  return value.kind == Kind::kCall &&
      functions.count(value.function_name()) > 0;
}

/// Makes tensors of any class. Its arguments are another function, the class,
/// the arguments of that function, and attributes.
constexpr std::string_view kFromType = "torch._tensor._rebuild_from_type_v2";

constexpr std::string_view kWrapper = "torch._utils._rebuild_wrapper_subclass";

/// Returns the class of a tensor that `kFromType` makes; "" if it is invalid.
std::string_view class_of(const PickleValue& call) {
  const auto& arguments = call.arguments()->items();
  return arguments.size() > 1 && arguments[1]->kind == Kind::kGlobal
      ? arguments[1]->text
      : std::string_view();
}

/// Returns whether a function with this name runs commands or code.
bool runs_code(std::string_view name) {
  constexpr std::array<std::string_view, 34> kStarts{
      "__builtin__.__import__",
      "__builtin__.apply",
      "__builtin__.compile",
      "__builtin__.eval",
      "__builtin__.exec",
      "__builtin__.open",
      "builtins.__import__",
      "builtins.compile",
      "builtins.eval",
      "builtins.exec",
      "builtins.open",
      "bdb.",
      "code.",
      "codeop.",
      "commands.",
      "ctypes.",
      "importlib.",
      "nt.",
      "os.exec",
      "os.popen",
      "os.remove",
      "os.spawn",
      "os.system",
      "pdb.",
      "pip.",
      "posix.",
      "profile.",
      "pty.",
      "runpy.",
      "shutil.",
      "socket.",
      "subprocess.",
      "timeit.",
      "webbrowser."};
  return begins_with_any(name, kStarts);
}

} // namespace

bool is_script_class(std::string_view name) {
  constexpr std::string_view kStart = "__torch__.";
  return name.substr(0, kStart.size()) == kStart;
}

void check_runs_no_code(const Pickle& pickle) {
  for (const auto& name : pickle.names()) {
    TORCH_ATTENTION_CHECK(
        !runs_code(name),
        "the file is malicious: its pickle names \"{}\", which runs code; "
        "it was not run. Do not load the file in Python",
        name);
  }
}

bool is_tensor(const PickleValue& value) {
  return is_call(value, tensor_names()) || !why_unread(value).empty();
}

bool makes_tensor(std::string_view name) {
  return tensor_names().count(name) > 0;
}

std::string why_class_unread(std::string_view class_name) {
  constexpr std::array<std::string_view, 4> kPlain{
      "torch.Tensor",
      "torch._tensor.Tensor",
      "torch.nn.parameter.Buffer",
      "torch.nn.parameter.Parameter"};
  if (std::find(kPlain.begin(), kPlain.end(), class_name) != kPlain.end()) {
    return {};
  }
  const auto has = [&](std::string_view part) {
    return class_name.find(part) != std::string_view::npos;
  };
  std::string advice =
      ".full_tensor(), .dequantize() or .as_subclass(torch.Tensor), whichever "
      "gives its values,";
  if (has("DTensor")) {
    advice = ".full_tensor()";
  } else if (has("NestedTensor")) {
    advice = ".to_padded_tensor() or .unbind()";
  } else if (has("torchao") || has("bitsandbytes") || has("uantized")) {
    advice = ".dequantize()";
  }
  return format_text(
      "is a tensor of the class \"{}\"; call {} on it in Python",
      class_name,
      advice);
}

std::string why_unread(const PickleValue& value) {
  if (value.kind != Kind::kCall) {
    return {};
  }
  const auto name = value.function_name();
  const auto found = unread_kinds().find(name);
  if (found != unread_kinds().end()) {
    return std::string(found->second);
  }
  if (name == kWrapper) {
    return why_class_unread("torch._utils._rebuild_wrapper_subclass");
  }
  return name == kFromType ? why_class_unread(class_of(value)) : std::string();
}

bool is_dict(const PickleValue& value) {
  return value.kind == Kind::kDict || is_call(value, dict_names());
}

std::string why_foreign(const PickleValue& value) {
  switch (value.kind) {
    case Kind::kGlobal:
      // Names of dtypes, layouts and storages begin with "torch.".
      return value.text.substr(0, 6) == "torch." || plain(value.text)
          ? std::string()
          : format_text("is the class or function \"{}\"", value.text);
    case Kind::kCall:
    case Kind::kObject: {
      const auto name = value.function_name();
      if (name.empty()) {
        return "is an object of a class that a call returns";
      }
      return plain(name)
          ? std::string()
          : format_text("is an object of the class \"{}\"", name);
    }
    default:
      return {};
  }
}

} // namespace torch_attention::weights::files
