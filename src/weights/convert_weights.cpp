#include <torch_attention/weights/convert.h>

#include <check.h>
#include <error_message.h>
#include <format_text.h>
#include <torch_attention/weights/inspect.h>
#include <torch_attention/weights/read.h>
#include <weights/files/overlap.h>
#include <weights/layout_beside.h>
#include <weights/layouts/convert.h>
#include <weights/select.h>
#include <weights/state_dict.h>

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

} // namespace

ConvertedWeights convert_weights(
    const std::string& from,
    const std::string& to,
    const ConvertOptions& options) {
  const auto& prefix = options.prefix();
  const auto info = inspect_weights(from, InspectOptions().prefix(prefix));
  // Reads the file that was found, even if its folder changes meanwhile.
  ConvertedWeights converted{
      read_weights(
          info.path,
          ReadOptions()
              .prefix(prefix)
              .mmap(true)
              .adapter(options.adapter())
              .dequantize(options.dequantize())),
      other_values(info, prefix),
      {},
      {}};
  try {
    check_size(converted.tensors);
    if (options.target()) {
      converted = layouts::convert(
          converted.tensors,
          options.source(),
          *options.target(),
          options.num_heads(),
          layout_beside(info.path, dotted(prefix)));
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
  write_weights(converted.tensors, to, written);
  return converted;
}

} // namespace torch_attention
