#include <weights/files/write.h>

#include <atomic_file.h>
#include <check.h>
#include <format_text.h>
#include <weights/files/checksum.h>
#include <weights/files/dtypes.h>
#include <weights/files/safetensors.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

namespace torch_attention::weights::files {

namespace {

/// A tensor and its position in the file.
struct PlacedTensor {
  std::string key;
  torch::Tensor tensor;
  std::string_view dtype;
  size_t element_size = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  uint32_t crc = 0;
};

/// Returns the tensors with the positions of their data. Tensors with large
/// elements come first, so each begins at a multiple of its element size.
std::vector<PlacedTensor> place(
    const StateDict& tensors,
    const WriteOptions& options) {
  std::vector<PlacedTensor> entries;
  for (const auto& item : tensors) {
    const auto& tensor = item.value();
    check_writable(item.key(), tensor);
    const auto written = written_dtype(tensor, options);
    const auto dtype = safetensors_dtype(written);
    TORCH_ATTENTION_CHECK(
        dtype,
        "safetensors has no dtype for \"{}\" of {}; torch.save's format "
        "(.pt) has",
        item.key(),
        python_dtype(written));
    TORCH_CHECK(
        item.key() != "__metadata__",
        "safetensors cannot hold a tensor of the name __metadata__");
    const auto element_size = c10::elementSize(written);
    const auto bytes = static_cast<uint64_t>(tensor.numel()) * element_size;
    entries.push_back({item.key(), tensor, *dtype, element_size, bytes});
  }
  std::stable_sort(
      entries.begin(),
      entries.end(),
      [](const PlacedTensor& a, const PlacedTensor& b) {
        return a.element_size > b.element_size;
      });
  uint64_t offset = 0;
  for (auto& entry : entries) {
    entry.offset = offset;
    offset += entry.bytes;
  }
  return entries;
}

/// Returns the entries of `__metadata__`. Their length does not depend on the
/// checksums, which are written last.
std::vector<std::string> metadata_of(
    const std::vector<PlacedTensor>& entries,
    const WriteOptions& options) {
  auto metadata = options.metadata();
  metadata.emplace("format", "pt");
  std::vector<std::string> items;
  for (const auto& [name, text] : metadata) {
    TORCH_ATTENTION_CHECK(
        !starts_with(name, checksum_name("")),
        "the metadata \"{}\" would stand for the checksum of a tensor",
        name);
    items.push_back(format_text("{}:{}", json_text(name), json_text(text)));
  }
  for (const auto& entry : entries) {
    items.push_back(format_text(
        R"({}:"{:08x}")", json_text(checksum_name(entry.key)), entry.crc));
  }
  return items;
}

// Formatted by hand: a JSON object of nlohmann's allocates in its destructor,
// which ends the program if memory has run out.
std::string header_of(
    const std::vector<PlacedTensor>& entries,
    const WriteOptions& options) {
  std::vector<std::string> items;
  items.push_back(format_text(
      R"("__metadata__":{{{}}})",
      fmt::join(metadata_of(entries, options), ",")));
  for (const auto& entry : entries) {
    items.push_back(format_text(
        R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
        json_text(entry.key),
        entry.dtype,
        fmt::join(entry.tensor.sizes(), ","),
        entry.offset,
        entry.offset + entry.bytes));
  }
  auto text = format_text("{{{}}}", fmt::join(items, ","));
  text.resize((text.size() + 7) / 8 * 8, ' ');
  TORCH_ATTENTION_CHECK(
      text.size() <= kMaxHeader,
      "the names and metadata take {} bytes, but safetensors allows {}; "
      "torch.save's format (.pt) has no such bound",
      text.size(),
      kMaxHeader);
  return text;
}

} // namespace

void write_safetensors(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options,
    const StoredTensors& stored) {
  auto entries = place(tensors, options);
  const auto empty_header = header_of(entries, options);
  AtomicFile file(path);
  const uint64_t length = empty_header.size();
  file.write(&length, sizeof(length));
  file.write(empty_header.data(), empty_header.size());
  for (auto& entry : entries) {
    const ValuesToWrite values(entry.tensor, options, stored);
    const Bytes bytes{
        nullptr,
        static_cast<const uint8_t*>(values.tensor().data_ptr()),
        static_cast<size_t>(entry.bytes)};
    entry.crc = crc32(bytes);
    file.write(bytes.data, bytes.size);
    if (options.progress()) {
      options.progress()(entry.bytes);
    }
  }
  const auto header = header_of(entries, options);
  file.overwrite(sizeof(length), header.data(), header.size());
  file.commit();
}

} // namespace torch_attention::weights::files
