#include <tools/convert.h>

#include <torch_attention/weights/write.h>

#include <format_text.h>
#include <tools/progress_bar.h>
#include <weights/files/dtypes.h>
#include <weights/folder.h>
#include <weights/layouts/map.h>
#include <weights/select.h>

#include <c10/util/Exception.h>

#include <ostream>
#include <utility>

namespace torch_attention::tools {

namespace {

void check_expanded(const std::string& key, const torch::Tensor& tensor) {
  TORCH_CHECK(
      !repeats_elements(tensor),
      format_text(
          "\"{}\" of shape ({}) repeats its {} bytes (expand); convert it in "
          "Python by clone()",
          key,
          fmt::join(tensor.sizes(), ", "),
          tensor.storage().nbytes()));
}

} // namespace

torch::ScalarType dtype_named(const std::string& name) {
  const auto dtype = dtype_from_python("torch." + name);
  TORCH_CHECK(
      dtype && c10::isFloatingType(*dtype),
      "expected a dtype such as float32, float64, float16 or bfloat16, but got "
      "\"",
      name,
      "\"");
  return *dtype;
}

void convert_file(
    const std::string& input,
    const std::string& output,
    const ConvertOptions& options,
    std::ostream& out) {
  const auto found = find_weight_file(input);
  const auto file = read_below(found, options.prefix);
  for (const auto& [key, reason] : file.unreadable) {
    TORCH_CHECK(false, format_text("\"{}\" {}", key, reason));
  }
  file.check(file.tensors.keys());
  for (const auto& item : file.tensors) {
    check_expanded(item.key(), item.value());
  }
  Converted converted{file.tensors, file.others};
  if (options.target) {
    converted = convert_layout(
        file.tensors, options.source, *options.target, options.num_heads);
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
  if (found != input) {
    out << format_text("from {}\n", found);
  }
  out << format_text("{}: {} tensors\n", output, tensors.size());
  if (!converted.left_out.empty()) {
    out << format_text("left out: {}\n", list_text(converted.left_out, ", "));
  }
}

} // namespace torch_attention::tools
