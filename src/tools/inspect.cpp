#include <tools/inspect.h>

#include <format_text.h>
#include <weights/files/dtypes.h>
#include <weights/folder.h>
#include <weights/layouts/map.h>
#include <weights/read.h>
#include <weights/select.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <ostream>

namespace torch_attention::tools {

namespace {

using Json = nlohmann::ordered_json;

std::optional<std::vector<int64_t>> shape_of(
    const Found& found,
    const std::string& key) {
  for (const auto& [name, shape] : found.shapes) {
    if (name == key) {
      return shape;
    }
  }
  return std::nullopt;
}

/// The numbers of heads into which queries and keys can be split. With fewer
/// key rows than query rows the number of heads of each follows from head_dim.
std::vector<int64_t> possible_heads(const Found& found) {
  if (found.num_heads) {
    return {*found.num_heads};
  }
  const auto query = shape_of(found, "W_query.weight");
  const auto key = shape_of(found, "W_key.weight");
  if (!query || query->empty()) {
    return {};
  }
  const auto rows = query->front();
  const auto key_rows = key && !key->empty() ? key->front() : rows;
  std::vector<int64_t> heads;
  // A file may claim any number of rows, of no columns.
  constexpr int64_t kMaxHeads = 4096;
  for (int64_t count = 1; count <= std::min(rows, kMaxHeads); ++count) {
    if (rows % count == 0 && key_rows % (rows / count) == 0) {
      heads.push_back(count);
    }
  }
  return heads;
}

std::string size_text(uint64_t bytes) {
  constexpr double kKilo = 1000;
  auto value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const auto* next : {"kB", "MB", "GB", "TB"}) {
    if (value < kKilo) {
      break;
    }
    value /= kKilo;
    unit = next;
  }
  return *unit == 'B' ? format_text("{} B", bytes)
                      : format_text("{:.1f} {}", value, unit);
}

Json attention_json(const Found& found) {
  Json shapes = Json::object();
  for (const auto& [key, shape] : found.shapes) {
    shapes[key] = shape;
  }
  return {
      {"path", found.scope},
      {"layout", found.layout.empty() ? Json() : Json(found.layout)},
      {"layouts_that_fit", found.ambiguous},
      {"possible_num_heads", possible_heads(found)},
      {"unknown_keys", found.unknown},
      {"shapes", shapes}};
}

void print_json(
    const WeightFile& file,
    const std::vector<Found>& attention,
    std::ostream& out) {
  Json json = {
      {"format", file.format},
      {"state_dict", file.root},
      {"bytes", total_bytes(file.tensors)},
      {"tensors", Json::array()},
      {"other_values", file.others},
      {"unreadable", Json::array()},
      {"attention", Json::array()}};
  for (const auto& item : file.tensors) {
    json["tensors"].push_back(
        {{"key", item.key()},
         {"shape", item.value().sizes().vec()},
         {"dtype", python_dtype(item.value().scalar_type())},
         {"bytes", item.value().nbytes()}});
  }
  for (const auto& [key, reason] : file.unreadable) {
    json["unreadable"].push_back({{"key", key}, {"reason", reason}});
  }
  for (const auto& found : attention) {
    json["attention"].push_back(attention_json(found));
  }
  // Keys of a file need not be valid text.
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

void print_tensors(const WeightFile& file, std::ostream& out) {
  size_t width = 3;
  for (const auto& item : file.tensors) {
    width = std::max(width, item.key().size());
  }
  for (const auto& item : file.tensors) {
    const auto& tensor = item.value();
    out << format_text(
        "  {:<{}}  {:<16}  {:<9} {:>10}\n",
        item.key(),
        width,
        format_text("({})", fmt::join(tensor.sizes(), ", ")),
        python_dtype(tensor.scalar_type()),
        size_text(tensor.nbytes()));
  }
  for (const auto& key : file.others) {
    out << format_text("  {:<{}}  no tensor\n", key, width);
  }
  for (const auto& [key, reason] : file.unreadable) {
    out << format_text("  {:<{}}  {}\n", key, width, reason);
  }
}

void print_attention(const Found& found, std::ostream& out) {
  const auto scope = found.scope.empty() ? "the file itself" : found.scope;
  if (found.layout.empty()) {
    out << format_text(
        "  {}: several layouts fit: {}\n",
        scope,
        fmt::join(found.ambiguous, ", "));
    return;
  }
  const auto heads = possible_heads(found);
  out << format_text("  {}: layout {}", scope, found.layout);
  if (const auto query = shape_of(found, "W_query.weight")) {
    out << format_text(", W_query ({})", fmt::join(*query, ", "));
  }
  if (!heads.empty()) {
    out << format_text(
        ", {}{} heads",
        found.num_heads ? "" : "possibly ",
        fmt::join(heads, ", "));
  }
  if (!found.unknown.empty()) {
    out << format_text(
        "; loading refuses it for keys that the layout does not know: {}",
        list_text(found.unknown, ", "));
  }
  out << "\n";
}

void print_text(
    const std::string& path,
    const WeightFile& file,
    const std::vector<Found>& attention,
    std::ostream& out) {
  out << format_text(
      "{}: {}, {} tensors, {}\n",
      path,
      file.format,
      file.tensors.size(),
      size_text(total_bytes(file.tensors)));
  if (!file.root.empty()) {
    out << format_text("state dict: {}\n", file.root);
  }
  if (!file.ambiguity.empty()) {
    out << file.ambiguity << "\n";
  }
  if (!file.why_empty.empty()) {
    out << file.why_empty << "\n";
  }
  print_tensors(file, out);
  out
      << (attention.empty() ? "no attention module found\n"
                            : "attention modules:\n");
  for (const auto& found : attention) {
    print_attention(found, out);
  }
}

} // namespace

void inspect_file(
    const std::string& path_or_folder,
    const InspectOptions& options,
    std::ostream& out) {
  const auto path = find_weight_file(path_or_folder);
  auto file = read_weight_file(path, dotted(options.prefix));
  if (!options.prefix.empty()) {
    file = select_below(std::move(file), options.prefix);
  }
  if (options.check) {
    file.check(file.tensors.keys());
  }
  const auto attention = find_layouts(file.tensors);
  if (options.json) {
    print_json(file, attention, out);
  } else {
    print_text(path, file, attention, out);
  }
}

} // namespace torch_attention::tools
