#include <tools/convert.h>

#include <torch_attention/weights/dtype.h>
#include <torch_attention/weights/inspect.h>
#include <torch_attention/weights/read.h>
#include <torch_attention/weights/write.h>

#include <format_text.h>
#include <tools/progress_bar.h>
#include <weights/files/overlap.h>
#include <weights/layout_beside.h>
#include <weights/layouts/convert.h>
#include <weights/select.h>

#include <c10/util/Exception.h>

#include <ostream>
#include <vector>

namespace torch_attention::tools {

namespace {

using weights::files::elements_spanned;
using weights::files::OverlapLimit;

using Tensors = torch::OrderedDict<std::string, torch::Tensor>;

/// How often each byte of a file may be written: views of a file's bytes may
/// overlap, and a tied weight is written once for each of its names.
constexpr uint64_t kMaxWrites = 64;

/// Checks that no tensor repeats its elements, and that all of them repeat the
/// bytes of the file no more often than tied weights do: a small file can
/// describe huge tensors.
void check_size(const Tensors& tensors) {
  OverlapLimit limit(tensors, kMaxWrites, "; convert it in Python by clone()");
  for (const auto& item : tensors) {
    const auto& tensor = item.value();
    TORCH_CHECK(
        tensor.numel() <= elements_spanned(tensor),
        format_text(
            "\"{}\" of shape ({}) repeats its {} elements (expand); convert it "
            "in Python by clone()",
            shortened(item.key(), 200),
            fmt::join(tensor.sizes(), ", "),
            elements_spanned(tensor)));
    limit.count(item.key(), tensor, tensor.numel());
  }
}

uint64_t total_bytes(const Tensors& tensors) {
  uint64_t bytes = 0;
  for (const auto& item : tensors) {
    bytes += item.value().nbytes();
  }
  return bytes;
}

/// Returns the names of values that are not tensors, below the state dict or
/// the prefix, as `read_weights` names tensors.
std::vector<std::string> other_values(
    const WeightsInfo& info,
    const std::string& prefix) {
  if (!prefix.empty() || info.state_dict.empty()) {
    return info.other_values;
  }
  const auto start = info.state_dict + ".";
  std::vector<std::string> names;
  for (const auto& name : info.other_values) {
    if (name.compare(0, start.size(), start) == 0) {
      names.push_back(name.substr(start.size()));
    }
  }
  return names;
}

} // namespace

torch::ScalarType dtype_named(const std::string& name) {
  const auto dtype = select_dtype(name);
  TORCH_CHECK(
      c10::isFloatingType(dtype),
      "expected a dtype such as float32, float64, float16 or bfloat16, but got "
      "\"",
      name,
      "\"");
  return dtype;
}

void convert_file(
    const std::string& input,
    const std::string& output,
    const ConvertOptions& options,
    std::ostream& out) {
  const auto info =
      inspect_weights(input, InspectOptions().prefix(options.prefix));
  // From here on reads the file that was found, even if its folder changes.
  const auto in_file =
      read_weights(info.path, ReadOptions().prefix(options.prefix).mmap(true));
  check_size(in_file);
  ConvertedWeights converted{in_file, other_values(info, options.prefix), {}};
  if (options.target) {
    converted = weights::layouts::convert(
        in_file,
        options.source,
        *options.target,
        options.num_heads,
        weights::layout_beside(info.path, weights::dotted(options.prefix)));
  }
  const auto& tensors = converted.tensors;
  {
    ProgressBar bar(output, total_bytes(tensors));
    write_weights(
        tensors,
        output,
        WriteOptions().dtype(options.dtype).progress([&](uint64_t written) {
          bar.advance(written);
        }));
  }
  if (info.path != input) {
    out << format_text("from {}\n", info.path);
  }
  out << format_text("{}: {} tensors\n", output, tensors.size());
  if (!converted.left_out.empty()) {
    out << format_text("left out: {}\n", list_text(converted.left_out, ", "));
  }
  for (const auto& remark : converted.remarks) {
    out << remark << "\n";
  }
}

} // namespace torch_attention::tools
