#include <tools/convert.h>

#include <torch_attention/weights/dtype.h>

#include <escape.h>
#include <format_text.h>
#include <tools/progress_bar.h>

#include <c10/util/Exception.h>

#include <optional>
#include <ostream>

namespace torch_attention::tools {

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
    ConvertOptions options,
    std::ostream& out) {
  std::optional<ProgressBar> bar;
  options.progress([&](uint64_t bytes, uint64_t of_all) {
    if (!bar) {
      bar.emplace(output, of_all);
    }
    bar->advance(bytes);
  });
  const auto converted = convert_weights(input, output, options);
  bar.reset();
  if (converted.path != input) {
    out << format_text("from {}\n", escaped(converted.path));
  }
  out << format_text(
      "{}: {} tensors\n", escaped(output), converted.tensors.size());
  if (!converted.left_out.empty()) {
    out << format_text("left out: {}\n", list_text(converted.left_out, ", "));
  }
  for (const auto& remark : converted.remarks) {
    out << escaped(remark) << "\n";
  }
}

} // namespace torch_attention::tools
