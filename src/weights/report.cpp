#include <torch_attention/weights/load.h>

#include <weights/files/dtypes.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <ostream>

namespace torch_attention {

namespace {

std::string dtypes_text(const LoadReport::Tensor& tensor) {
  const auto* module_dtype = torch::toString(tensor.module_dtype);
  return tensor.file_dtype == tensor.module_dtype
      ? std::string(module_dtype)
      : fmt::format(
            "{} -> {}", torch::toString(tensor.file_dtype), module_dtype);
}

/// Where it comes from, if the file calls it otherwise.
std::string origin_text(const LoadReport::Tensor& tensor) {
  const auto& keys = tensor.file_keys;
  if (keys.empty() || (keys.size() == 1 && keys.front() == tensor.key)) {
    return "";
  }
  return keys.size() == 1
      ? fmt::format("  from {}", keys.front())
      : fmt::format("  from {} ... {}", keys.front(), keys.back());
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
  fmt::memory_buffer out;
  const auto line = std::back_inserter(out);
  fmt::format_to(
      line,
      "{} tensors from {} ({}, layout {})\n",
      report.loaded.size(),
      report.path,
      report.format,
      report.layout);
  for (const auto& tensor : report.loaded) {
    fmt::format_to(
        line,
        "  {:<{}}  {:<16}  {}{}\n",
        tensor.key,
        width,
        fmt::format("({})", fmt::join(tensor.shape, ", ")),
        dtypes_text(tensor),
        origin_text(tensor));
  }
  const auto list = [&](const std::vector<std::string>& keys,
                        const char* what) {
    for (const auto& key : keys) {
      fmt::format_to(line, "  {:<{}}  {}\n", key, width, what);
    }
  };
  list(report.zeros, "zeros: the layout has none");
  list(report.missing, "missing in the file, kept");
  list(report.unexpected, "only in the file, not used");
  return stream << fmt::to_string(out);
}

} // namespace torch_attention
