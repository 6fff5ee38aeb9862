#include <escape.h>
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
  if (!tensor.stored_as.empty()) {
    return format_text("{} -> {}", escaped(tensor.stored_as), module_dtype);
  }
  return tensor.file_dtype == tensor.module_dtype
      ? std::string(module_dtype)
      : format_text(
            "{} -> {}", torch::toString(tensor.file_dtype), module_dtype);
}

bool has_own_key(const LoadReport::Tensor& tensor) {
  return tensor.file_keys.size() == 1 && tensor.file_keys.front() == tensor.key;
}

/// Describes the keys of the file that a tensor was read from.
std::string origin_text(const LoadReport::Tensor& tensor) {
  constexpr size_t kMaxKey = 200;
  const auto& keys = tensor.file_keys;
  if (keys.empty()) {
    return "";
  }
  const auto first = escaped(shortened(keys.front(), kMaxKey));
  return keys.size() == 1 ? format_text("  from {}", first)
                          : format_text(
                                "  from {} ... {}",
                                first,
                                escaped(shortened(keys.back(), kMaxKey)));
}

size_t key_width(const LoadReport& report) {
  size_t width = 3;
  for (const auto& tensor : report.loaded) {
    width = std::max(width, escaped(tensor.key).size());
  }
  return width;
}

} // namespace

std::ostream& operator<<(std::ostream& stream, const LoadReport& report) {
  const auto width = key_width(report);
  stream << format_text(
      "{} tensors from {} ({}, layout {})\n",
      report.loaded.size(),
      escaped(report.path),
      report.format,
      report.layout);
  // Omits the file's keys if all equal the module's.
  const bool tells_origin =
      !std::all_of(report.loaded.begin(), report.loaded.end(), has_own_key);
  for (const auto& tensor : report.loaded) {
    stream << format_text(
        "  {:<{}}  {:<16}  {}{}\n",
        escaped(tensor.key),
        width,
        format_text("({})", fmt::join(tensor.shape, ", ")),
        dtypes_text(tensor),
        tells_origin ? origin_text(tensor) : "");
  }
  const auto list = [&](const std::vector<std::string>& keys,
                        const char* what) {
    std::vector<std::string> lines;
    lines.reserve(keys.size());
    for (const auto& key : keys) {
      lines.push_back(format_text("{:<{}}  {}", escaped(key), width, what));
    }
    if (!lines.empty()) {
      stream << "  " << list_text(lines, "\n  ") << "\n";
    }
  };
  list(report.zeros, "zeros: the layout has none");
  list(report.missing, "missing in the file, kept");
  list(report.unexpected, "only in the file, not used");
  if (!report.passed_over.empty()) {
    stream << "  passed over: "
           << list_text(report.passed_over, "\n  passed over: ") << "\n";
  }
  for (const auto& remark : report.remarks) {
    stream << "  " << escaped(remark) << "\n";
  }
  return stream;
}

} // namespace torch_attention
