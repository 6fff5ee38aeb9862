#include <weights/files/sharded_index.h>

#include <format_text.h>
#include <weights/files/atomic_file.h>
#include <weights/files/json.h>
#include <weights/files/weight_file.h>
#include <weights/text.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <string_view>

namespace torch_attention::weights::files {

namespace {

/// Checks that the name is that of a file in the same folder as the index.
void check_file_name(std::string_view name) {
  TORCH_CHECK(
      !name.empty() && name.front() != '.' &&
          name.find_first_of(std::string("/\\\0", 3)) == std::string::npos,
      "the index names the file \"",
      shortened(name, 200),
      "\", expected one beside it");
}

} // namespace

std::vector<IndexEntry> read_index(const Bytes& bytes) {
  std::vector<IndexEntry> entries;
  bool has_map = false;
  read_json(bytes, [&](const JsonPath& path, const JsonValue& value) {
    if (path.empty() || path.front() != "weight_map") {
      return;
    }
    if (path.size() == 1) {
      has_map = value.kind == JsonValue::Kind::kObject;
    } else if (has_map) {
      TORCH_CHECK(
          path.size() == 2 && value.kind == JsonValue::Kind::kText,
          format_text(
              "the index names no file for \"{}\"", shortened(path[1], 200)));
      check_key_length(path[1]);
      check_file_name(value.text);
      entries.push_back({path[1], std::string(value.text)});
    }
  });
  TORCH_CHECK(
      has_map,
      "the file is JSON, but no index of a model in several files: it has no "
      "\"weight_map\"");
  return entries;
}

void write_index(
    const std::vector<IndexEntry>& entries,
    uint64_t total_size,
    const std::string& path) {
  auto files = nlohmann::json::object();
  for (const auto& [key, file] : entries) {
    files[key] = file;
  }
  const nlohmann::json index = {
      {"metadata", {{"total_size", total_size}}}, {"weight_map", files}};
  const auto text = index.dump(2) + "\n";
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

} // namespace torch_attention::weights::files
