#include <weights/files/pickle_names.h>

#include <weights/files/dtypes.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

namespace torch_attention::weights::files {

namespace {

using Kind = PickleValue::Kind;

/// Returns the names that come beside tensors in checkpoints. They are only
/// described.
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

/// Returns the functions that make tensors which are not read, and the reasons.
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

/// Returns whether the name is that of a dtype, "torch.float32", also of one
/// that only other versions of LibTorch have. Only names of dtypes begin like
/// this.
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

bool is_call(
    const PickleValue& value,
    const std::unordered_set<std::string_view>& functions) {
  return value.kind == Kind::kCall && functions.count(value.function->text) > 0;
}

} // namespace

bool is_known(std::string_view name, bool is_script) {
  return is_dtype_name(name) || tensor_names().count(name) > 0 ||
      dict_names().count(name) > 0 || harmless_names().count(name) > 0 ||
      unread_kinds().count(name) > 0 || name == "torch.Size" ||
      dtype_from_storage(name) || (is_script && is_script_class(name));
}

bool is_script_class(std::string_view name) {
  constexpr std::string_view kStart = "__torch__.";
  return name.substr(0, kStart.size()) == kStart;
}

bool is_tensor(const PickleValue& value) {
  return is_call(value, tensor_names());
}

bool makes_tensor(std::string_view name) {
  return tensor_names().count(name) > 0;
}

std::string_view why_unread(const PickleValue& value) {
  if (value.kind != Kind::kCall) {
    return {};
  }
  const auto found = unread_kinds().find(value.function->text);
  return found == unread_kinds().end() ? std::string_view() : found->second;
}

bool is_dict(const PickleValue& value) {
  return value.kind == Kind::kDict || is_call(value, dict_names());
}

} // namespace torch_attention::weights::files
