#include <format_text.h>
#include <weights/files/write.h>

#include <weights/files/atomic_file.h>
#include <weights/files/checksum.h>
#include <weights/files/dtypes.h>
#include <weights/files/safetensors.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

namespace torch_attention {

namespace {

/// A tensor of the file.
struct Entry {
  std::string key;
  torch::Tensor tensor;
  std::string_view dtype;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  uint32_t crc = 0;
};

/// The tensors with the places of their data. Large elements come first, so
/// that each begins at a multiple of its size.
std::vector<Entry> place(const StateDict& tensors) {
  std::vector<Entry> entries;
  for (const auto& item : tensors) {
    const auto& tensor = item.value();
    const auto dtype = safetensors_dtype(tensor.scalar_type());
    TORCH_CHECK(
        dtype,
        "safetensors has no dtype for \"",
        item.key(),
        "\" of ",
        python_dtype(tensor.scalar_type()),
        "; torch.save's format (.pt) has");
    TORCH_CHECK(
        item.key() != "__metadata__",
        "safetensors cannot hold a tensor of the name __metadata__");
    entries.push_back({item.key(), tensor, *dtype, tensor.nbytes()});
  }
  std::vector<Entry*> order;
  for (auto& entry : entries) {
    order.push_back(&entry);
  }
  std::stable_sort(order.begin(), order.end(), [](Entry* a, Entry* b) {
    return a->tensor.element_size() > b->tensor.element_size();
  });
  uint64_t offset = 0;
  for (auto* entry : order) {
    entry->offset = offset;
    offset += entry->bytes;
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.offset < b.offset;
  });
  return entries;
}

/// The same length whatever the checksums are.
std::string header_of(const std::vector<Entry>& entries) {
  nlohmann::ordered_json metadata = {{"format", "pt"}};
  for (const auto& entry : entries) {
    metadata[checksum_name(entry.key)] = format_text("{:08x}", entry.crc);
  }
  nlohmann::ordered_json header = {{"__metadata__", metadata}};
  for (const auto& entry : entries) {
    header[entry.key] = {
        {"dtype", entry.dtype},
        {"shape", entry.tensor.sizes().vec()},
        {"data_offsets", {entry.offset, entry.offset + entry.bytes}}};
  }
  auto text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

} // namespace

void write_safetensors(
    const StateDict& tensors,
    const std::string& path,
    const Progress& progress) {
  auto entries = place(tensors);
  AtomicFile file(path);
  const auto empty_header = header_of(entries);
  const uint64_t length = empty_header.size();
  file.write(&length, sizeof(length));
  file.write(empty_header.data(), empty_header.size());
  for (auto& entry : entries) {
    const auto values = values_to_write(entry.tensor);
    const Bytes bytes{
        nullptr,
        static_cast<const uint8_t*>(values.data_ptr()),
        static_cast<size_t>(entry.bytes)};
    entry.crc = crc32(bytes);
    file.write(bytes.data, bytes.size);
    if (progress) {
      progress(entry.bytes);
    }
  }
  const auto header = header_of(entries);
  file.overwrite(sizeof(length), header.data(), header.size());
  file.commit();
}

} // namespace torch_attention
