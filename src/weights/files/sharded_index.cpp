#include <weights/files/sharded_index.h>

#include <atomic_file.h>
#include <check.h>
#include <format_text.h>
#include <json.h>
#include <weights/files/weight_file.h>
#include <weights/files/write.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <algorithm>

namespace torch_attention::weights::files {

void check_file_name(std::string_view name) {
  TORCH_ATTENTION_CHECK(
      !name.empty() && name.front() != '.' &&
          name.find_first_of(std::string("/\\\0", 3)) == std::string::npos,
      "an index cannot name the file \"{}\", expected one beside it, and "
      "not hidden",
      shortened(name, 200));
}

std::vector<IndexEntry> read_index(const Bytes& bytes) {
  std::vector<IndexEntry> entries;
  bool has_map = false;
  read_json(bytes.text(), [&](const JsonPath& path, const JsonValue& value) {
    if (path.empty() || path.front() != "weight_map") {
      return;
    }
    if (path.size() == 1) {
      has_map = value.kind == JsonValue::Kind::kObject;
    } else if (has_map) {
      TORCH_ATTENTION_CHECK(
          path.size() == 2 && value.kind == JsonValue::Kind::kText,
          "the index names no file for \"{}\"",
          shortened(path[1], 200));
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
    std::vector<IndexEntry> entries,
    uint64_t total_size,
    const std::string& path) {
  std::sort(
      entries.begin(),
      entries.end(),
      [](const IndexEntry& a, const IndexEntry& b) { return a.key < b.key; });
  std::vector<std::string> lines;
  for (const auto& entry : entries) {
    lines.push_back(
        format_text("    {}: {}", json_text(entry.key), json_text(entry.file)));
  }
  const auto text = format_text(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n"
      "  \"weight_map\": {{\n{}\n  }}\n}}\n",
      total_size,
      fmt::join(lines, ",\n"));
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

} // namespace torch_attention::weights::files
