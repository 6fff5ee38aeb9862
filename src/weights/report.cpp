#include <format_text.h>
#include <torch_attention/weights/load.h>

#include <weights/files/dtypes.h>

#include <algorithm>
#include <iterator>
#include <ostream>

namespace torch_attention {

namespace {

std::string dtypes_text(const LoadReport::Tensor& tensor) {
  const auto* module_dtype = torch::toString(tensor.module_dtype);
  return tensor.file_dtype == tensor.module_dtype
      ? std::string(module_dtype)
      : format_text(
            "{} -> {}", torch::toString(tensor.file_dtype), module_dtype);
}

/// Where it comes from, if the file calls it otherwise.
std::string origin_text(const LoadReport::Tensor& tensor) {
  const auto& keys = tensor.file_keys;
  if (keys.empty() || (keys.size() == 1 && keys.front() == tensor.key)) {
    return "";
  }
  return keys.size() == 1
      ? format_text("  from {}", keys.front())
      : format_text("  from {} ... {}", keys.front(), keys.back());
}

size_t key_width(const LoadReport& report) {
  size_t width = 3;
  for (const auto& tensor : report.loaded) {
    width = std::max(width, tensor.key.size());
  }
  return width;
}

} // namespace

std::ostream& operator<<(std::ostream& stream, const LoadReport& report) {
  const auto width = key_width(report);
  stream << format_text(
      "{} tensors from {} ({}, layout {})\n",
      report.loaded.size(),
      report.path,
      report.format,
      report.layout);
  for (const auto& tensor : report.loaded) {
    stream << format_text(
        "  {:<{}}  {:<16}  {}{}\n",
        tensor.key,
        width,
        format_text("({})", fmt::join(tensor.shape, ", ")),
        dtypes_text(tensor),
        origin_text(tensor));
  }
  const auto list = [&](const std::vector<std::string>& keys,
                        const char* what) {
    for (const auto& key : keys) {
      stream << format_text("  {:<{}}  {}\n", key, width, what);
    }
  };
  list(report.zeros, "zeros: the layout has none");
  list(report.missing, "missing in the file, kept");
  list(report.unexpected, "only in the file, not used");
  return stream;
}

} // namespace torch_attention
