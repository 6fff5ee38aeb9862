#include <weights/files/safetensors.h>

#include <format_text.h>
#include <weights/files/checksum.h>
#include <weights/files/dtypes.h>
#include <weights/files/tensor_view.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

namespace torch_attention::weights::files {

namespace {

constexpr size_t kLengthBytes = 8;
const std::string kChecksum = "crc32:";

/// The header's description of a tensor.
struct HeaderEntry {
  std::string key;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_shape = false;
  bool has_offsets = false;
};

[[noreturn]] void fail(const std::string& problem) {
  constexpr size_t kMaxProblem = 1000;
  C10_THROW_ERROR(
      Error,
      "the file is damaged or no safetensors file: " +
          shortened(problem, kMaxProblem));
}

/// Reads the header value by value. It makes no tree, sees duplicate keys, and
/// allows no deeper nesting than the format has.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;

  bool start_object(std::size_t /*elements*/) override {
    if (depth_ == 1) {
      is_metadata_ = key_ == "__metadata__";
      if (is_metadata_ && has_metadata_) {
        fail("it has the key \"__metadata__\" twice");
      }
      has_metadata_ = has_metadata_ || is_metadata_;
      if (!is_metadata_) {
        if (entries.size() >= kMaxTensors) {
          fail("more than a million tensors");
        }
        entries.emplace_back();
        entries.back().key = key_;
      }
    } else if (depth_ != 0) {
      fail("its header is nested too deep");
    }
    ++depth_;
    return true;
  }

  bool end_object() override {
    if (--depth_ == 1 && !is_metadata_) {
      const auto& entry = entries.back();
      if (entry.dtype.empty() || !entry.has_shape || !entry.has_offsets) {
        fail(format_text(
            "\"{}\" lacks dtype, shape or data_offsets", entry.key));
      }
    }
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      check_key_length(name);
      key_ = name;
    } else {
      field_ = name;
    }
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (depth_ != 2 || is_metadata_ || in_array_) {
      fail("its header has a list where none belongs");
    }
    auto& entry = entries.back();
    auto& seen = field_ == "shape" ? entry.has_shape : entry.has_offsets;
    if ((field_ != "shape" && field_ != "data_offsets") || seen) {
      fail(format_text(
          "\"{}\" has \"{}\" twice or unexpectedly", entry.key, field_));
    }
    seen = true;
    in_array_ = true;
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && is_metadata_) {
      if (!metadata.emplace(field_, text).second) {
        fail(format_text("__metadata__ has \"{}\" twice", field_));
      }
      return true;
    }
    if (depth_ != 2 || in_array_ || field_ != "dtype" ||
        !entries.back().dtype.empty()) {
      fail("its header has a text where none belongs");
    }
    entries.back().dtype = text;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (!in_array_) {
      fail("its header has a number where none belongs");
    }
    auto& entry = entries.back();
    if (field_ == "shape") {
      if (number > static_cast<uint64_t>(INT64_MAX) ||
          entry.shape.size() >= kMaxDimensions) {
        fail(format_text("the shape of \"{}\" is too large", entry.key));
      }
      entry.shape.push_back(static_cast<int64_t>(number));
    } else {
      if (entry.offsets.size() >= 2) {
        fail(format_text("\"{}\" has more than two data_offsets", entry.key));
      }
      entry.offsets.push_back(number);
    }
    return true;
  }

  bool null() override {
    fail("its header has a null");
  }
  bool boolean(bool /*value*/) override {
    fail("its header has true or false");
  }
  bool number_integer(number_integer_t number) override {
    fail(format_text("its header has the negative number {}", number));
  }
  bool number_float(number_float_t /*number*/, const string_t& text) override {
    fail(format_text("its header has the number {}", text));
  }
  bool binary(binary_t& /*value*/) override {
    fail("its header has binary data");
  }
  bool parse_error(
      std::size_t position,
      const std::string& /*token*/,
      const nlohmann::detail::exception& /*error*/) override {
    fail(format_text("its header is no JSON (at byte {})", position));
  }

 private:
  int depth_ = 0;
  bool is_metadata_ = false;
  bool has_metadata_ = false;
  bool in_array_ = false;
  std::string key_;
  std::string field_;
};

uint64_t header_length(const Bytes& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data, sizeof(length));
  return length;
}

Bytes header_of(const Bytes& file) {
  if (file.size < kLengthBytes) {
    fail(format_text("it has only {} bytes", file.size));
  }
  const auto length = header_length(file);
  if (length > kMaxHeader) {
    fail(format_text("its header claims {} bytes, more than 100 MB", length));
  }
  if (length > file.size - kLengthBytes) {
    fail(format_text(
        "its header claims {} bytes, more than the file has; it is cut short",
        length));
  }
  return file.part(kLengthBytes, length);
}

HeaderReader read_header(const Bytes& header) {
  HeaderReader reader;
  const auto text = header.text();
  if (text.empty() || text.front() != '{') {
    fail("its header is no JSON object");
  }
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return reader;
}

/// Checks that each tensor begins where the one before ends: no gap, no
/// overlap.
void check_offsets(
    const std::vector<HeaderEntry>& entries,
    uint64_t data_size) {
  std::vector<const HeaderEntry*> order;
  for (const auto& entry : entries) {
    if (entry.offsets.size() != 2 || entry.offsets[0] > entry.offsets[1]) {
      fail(format_text(
          "the data_offsets of \"{}\" are [{}]",
          entry.key,
          fmt::join(entry.offsets, ", ")));
    }
    order.push_back(&entry);
  }
  std::sort(
      order.begin(),
      order.end(),
      [](const HeaderEntry* a, const HeaderEntry* b) {
        return a->offsets < b->offsets;
      });
  uint64_t end = 0;
  for (const auto* entry : order) {
    if (entry->offsets[0] != end) {
      fail(format_text(
          "the data of \"{}\" begin at byte {}, expected {}",
          entry->key,
          entry->offsets[0],
          end));
    }
    end = entry->offsets[1];
  }
  if (end != data_size) {
    fail(format_text(
        "its tensors have {} bytes, but {} follow the header{}",
        end,
        data_size,
        end > data_size ? "; it is cut short" : ""));
  }
}

/// A tensor's bytes and their checksum.
struct Checked {
  Bytes bytes;
  uint32_t crc = 0;
};

torch::Tensor read_tensor(const HeaderEntry& entry, const Bytes& bytes) {
  const auto dtype = dtype_from_safetensors(entry.dtype);
  if (!dtype) {
    fail(format_text(
        "\"{}\" has the dtype \"{}\", which is not known",
        entry.key,
        entry.dtype));
  }
  const auto item = c10::elementSize(*dtype);
  TensorLayout layout{*dtype, entry.shape, contiguous_strides(entry.shape), 0};
  const auto tensor = view_tensor(aligned(bytes, item), layout);
  if (static_cast<uint64_t>(tensor.numel()) * item != bytes.size) {
    fail(format_text(
        "\"{}\" of shape ({}) and dtype {} has {} bytes",
        entry.key,
        fmt::join(entry.shape, ", "),
        entry.dtype,
        bytes.size));
  }
  return tensor;
}

std::optional<uint32_t> stored_checksum(
    const std::map<std::string, std::string>& metadata,
    const std::string& key) {
  const auto found = metadata.find(checksum_name(key));
  if (found == metadata.end()) {
    return std::nullopt;
  }
  const auto& digits = found->second;
  if (digits.size() != 8 ||
      digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    fail(format_text("the checksum of \"{}\" is \"{}\"", key, digits));
  }
  return static_cast<uint32_t>(std::stoul(digits, nullptr, 16));
}

/// Checks that, if there are checksums, every tensor has one and every checksum
/// has its tensor: a damaged key is as bad as a damaged value.
void check_checksum_names(const HeaderReader& reader) {
  size_t checksums = 0;
  for (const auto& [name, value] : reader.metadata) {
    checksums += starts_with(name, kChecksum) ? 1 : 0;
  }
  if (checksums == 0) {
    return;
  }
  for (const auto& entry : reader.entries) {
    if (reader.metadata.count(checksum_name(entry.key)) == 0) {
      fail(format_text("\"{}\" has no checksum, but others have", entry.key));
    }
  }
  if (checksums != reader.entries.size()) {
    fail(format_text(
        "it has {} checksums of {} tensors", checksums, reader.entries.size()));
  }
}

} // namespace

std::string checksum_name(const std::string& key) {
  return kChecksum + key;
}

bool is_safetensors(const Bytes& file) {
  return file.size > kLengthBytes && file.data[kLengthBytes] == '{' &&
      header_length(file) <= uint64_t{1} << 40;
}

WeightFile read_safetensors(const Bytes& file) {
  const auto header = header_of(file);
  const auto reader = read_header(header);
  const auto data = file.part(
      kLengthBytes + header.size, file.size - kLengthBytes - header.size);
  check_offsets(reader.entries, data.size);
  check_checksum_names(reader);

  WeightFile result;
  result.format = "safetensors file";
  std::unordered_map<std::string, Checked> checked;
  for (const auto& entry : reader.entries) {
    const auto bytes =
        data.part(entry.offsets[0], entry.offsets[1] - entry.offsets[0]);
    if (result.tensors.contains(entry.key)) {
      fail(format_text("it has the key \"{}\" twice", entry.key));
    }
    result.tensors.insert(entry.key, read_tensor(entry, bytes));
    if (const auto crc = stored_checksum(reader.metadata, entry.key)) {
      checked.emplace(entry.key, Checked{bytes, *crc});
    }
  }
  result.check = [checked = std::move(checked), tensors = result.tensors](
                     const std::vector<std::string>& keys) {
    for (const auto& key : keys) {
      const auto found = checked.find(key);
      TORCH_CHECK(
          found == checked.end() ||
              crc32(found->second.bytes) == found->second.crc,
          "the file is damaged: \"",
          key,
          "\" does not have the checksum (CRC-32) that was stored with it");
      check_values(key, tensors[key]);
    }
  };
  return result;
}

} // namespace torch_attention::weights::files
