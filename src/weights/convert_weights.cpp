#include <torch_attention/weights/convert.h>

#include <check.h>
#include <error_message.h>
#include <format_text.h>
#include <torch_attention/weights/inspect.h>
#include <weights/files/overlap.h>
#include <weights/layout_beside.h>
#include <weights/layouts/convert.h>
#include <weights/open_weights.h>
#include <weights/quantized/dequantize.h>
#include <weights/select.h>
#include <weights/state_dict.h>
#include <weights/write_stored.h>

#include <ATen/ops/empty.h>

#include <exception>
#include <string>
#include <vector>

namespace torch_attention {

using namespace weights;
using namespace weights::files;

namespace {

/// The number of times that each byte of a file may be written: views of a
/// file's bytes may overlap, and a tied weight is written once for each of its
/// names.
constexpr uint64_t kMaxWrites = 64;

/// Checks that no tensor repeats its elements, and that all tensors together
/// repeat the file's bytes no more often than tied weights do: otherwise a
/// small file could become a huge one.
void check_size(const StateDict& tensors) {
  OverlapLimit limit(tensors, kMaxWrites, "; convert it in Python by clone()");
  for (const auto& item : tensors) {
    const auto& tensor = item.value();
    TORCH_ATTENTION_CHECK(
        tensor.numel() <= elements_spanned(tensor),
        "\"{}\" of shape ({}) repeats its {} elements (expand); convert it "
        "in Python by clone()",
        shortened(item.key(), 200),
        fmt::join(tensor.sizes(), ", "),
        elements_spanned(tensor));
    limit.count(item.key(), tensor, tensor.numel());
  }
}

/// Checks that tensors of quantized weights, which are written as they are
/// stored, still give the same values.
void check_stays_readable(
    const WeightFile& file,
    const ConvertOptions& options) {
  if (options.dtype() || options.target()) {
    check_not_quantized(
        file, options.dtype() ? "dtype (--dtype)" : "target (--layout)");
  }
  const auto name = quantized::torchao_weight(file);
  TORCH_ATTENTION_CHECK(
      name.empty(),
      "\"{}\" is stored by torchao in parts that only the header of the file "
      "describes, which is not copied: give dequantize(true) (--dequantize)",
      name);
}

/// Returns the names of values that are not tensors, below the state dict or
/// the prefix, as `read_weights` names tensors.
std::vector<std::string> other_values(
    const WeightsInfo& info,
    const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& value : info.passed_over) {
    names.push_back(value.key);
  }
  if (!prefix.empty() || info.state_dict.empty()) {
    names.insert(
        names.end(), info.other_values.begin(), info.other_values.end());
    return names;
  }
  const auto start = info.state_dict + ".";
  for (const auto& name : info.other_values) {
    if (starts_with(name, start)) {
      names.push_back(name.substr(start.size()));
    }
  }
  return names;
}

/// Returns the tensors, but those whose values were computed without values.
StateDict without_computed(
    const StateDict& tensors,
    const StoredTensors& stored) {
  if (stored.empty()) {
    return tensors;
  }
  StateDict result;
  for (const auto& item : tensors) {
    const auto& tensor = item.value();
    result.insert(
        item.key(),
        stored.find(tensor) == nullptr
            ? tensor
            : at::empty(tensor.sizes(), tensor.options().device(torch::kMeta)));
  }
  return result;
}

} // namespace

ConvertedWeights convert_weights(
    const std::string& from,
    const std::string& to,
    const ConvertOptions& options) {
  const auto& prefix = options.prefix();
  const auto info = inspect_weights(from, InspectOptions().prefix(prefix));
  // Reads the file that was found, even if its folder changes meanwhile.
  auto file = open_weights(
      info.path,
      ReadOptions()
          .prefix(prefix)
          .mmap(true)
          .adapter(options.adapter())
          .dequantize(options.dequantize()));
  ConvertedWeights converted{file.tensors, other_values(info, prefix), {}, {}};
  try {
    check_size(converted.tensors);
    if (!options.dequantize()) {
      check_stays_readable(file, options);
    }
    if (options.target()) {
      converted = layouts::convert(
          converted.tensors,
          options.source(),
          *options.target(),
          options.num_heads(),
          layout_beside(info.path, dotted(prefix)),
          file.stored);
    }
  } catch (const std::exception& error) {
    auto text = format_text(
        "convert_weights(\"{}\"): {}", escaped(from), error_message(error));
    // The remarks name layers that belong to no known layout.
    if (info.attention.empty()) {
      for (const auto& remark : info.remarks) {
        text += "\n  " + escaped(remark);
      }
    }
    throw_printable(text);
  }
  converted.path = info.path;
  WriteOptions written;
  written.format(options.format()).dtype(options.dtype());
  if (options.progress()) {
    const auto of_all = total_bytes(converted.tensors);
    written.progress(
        [&, of_all](uint64_t bytes) { options.progress()(bytes, of_all); });
  }
  write_stored(converted.tensors, file.stored, to, written);
  converted.tensors = without_computed(converted.tensors, file.stored);
  return converted;
}

} // namespace torch_attention
