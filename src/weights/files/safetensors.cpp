#include <weights/files/safetensors.h>

#include <check.h>
#include <format_text.h>
#include <json.h>
#include <weights/files/checksum.h>
#include <weights/files/dtypes.h>
#include <weights/files/tensor_view.h>

#include <c10/util/Exception.h>

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

/// A tensor's description in the header.
struct HeaderEntry {
  std::string key;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> offsets;
  bool has_shape = false;
  bool has_offsets = false;
};

struct Header {
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
};

[[noreturn]] void fail(const std::string& problem) {
  constexpr size_t kMaxProblem = 1000;
  C10_THROW_ERROR(
      Error,
      "the file is damaged or no safetensors file: " +
          shortened(problem, kMaxProblem));
}

/// Reads a value of a tensor's description, or an element of its lists.
void read_entry(
    const JsonPath& path,
    const JsonValue& value,
    HeaderEntry& entry) {
  using JsonKind = JsonValue::Kind;
  const auto& field = path[1];
  const bool is_shape = field == "shape";
  if (field == "dtype" && path.size() == 2) {
    check_kind(value, JsonKind::kText, "a text as a dtype");
    entry.dtype = value.text;
    return;
  }
  if (!is_shape && field != "data_offsets") {
    return; // added by a later version of the format
  }
  if (path.size() == 2) {
    check_kind(value, JsonKind::kList, "a list of numbers");
    (is_shape ? entry.has_shape : entry.has_offsets) = true;
    return;
  }
  check_kind(value, JsonKind::kInteger, "an integer of 64 bits");
  auto& numbers = is_shape ? entry.shape : entry.offsets;
  if (value.integer < 0) {
    fail(format_text(
        "\"{}\" has the number {} in its {}", entry.key, value.integer, field));
  }
  if (numbers.size() >= kMaxDimensions) {
    fail(
        format_text("the {} of \"{}\" has too many numbers", field, entry.key));
  }
  numbers.push_back(value.integer);
}

void check_last_entry(const Header& header) {
  if (header.entries.empty()) {
    return;
  }
  const auto& entry = header.entries.back();
  if (entry.dtype.empty() || !entry.has_shape || !entry.has_offsets) {
    fail(format_text("\"{}\" lacks dtype, shape or data_offsets", entry.key));
  }
}

/// Reads a value of the header: {"__metadata__": {NAME: TEXT}, KEY: {"dtype":
/// "F32", "shape": [2, 3], "data_offsets": [0, 24]}}.
void read_value(const JsonPath& path, const JsonValue& value, Header& header) {
  using JsonKind = JsonValue::Kind;
  const bool is_metadata = !path.empty() && path[0] == "__metadata__";
  if (is_metadata && path.size() == 1 && value.kind == JsonKind::kNull) {
    return; // like a missing one
  }
  if (path.size() < 2) {
    check_kind(value, JsonKind::kObject, "an object in its header");
    if (path.size() == 1 && !is_metadata) {
      if (header.entries.size() >= kMaxTensors) {
        fail("more than a million tensors");
      }
      check_key_length(path[0]);
      // Checked here, since many empty entries would need far more memory than
      // the header.
      check_last_entry(header);
      header.entries.emplace_back();
      header.entries.back().key = path[0];
    }
  } else if (is_metadata) {
    check_kind(value, JsonKind::kText, "a text in __metadata__");
    header.metadata.emplace(path[1], value.text);
  } else {
    read_entry(path, value, header.entries.back());
  }
}

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

Header read_header(const Bytes& bytes) {
  Header header;
  read_json(bytes.text(), [&](const JsonPath& path, const JsonValue& value) {
    read_value(path, value, header);
  });
  check_last_entry(header);
  return header;
}

/// Checks that each tensor begins where the previous one ends: without gaps or
/// overlaps.
void check_offsets(const std::vector<HeaderEntry>& entries, int64_t data_size) {
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
  int64_t end = 0;
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

/// The data by which a tensor is checked.
struct Checked {
  Bytes bytes;
  std::optional<uint32_t> crc;
  /// the tensor, if its dtype is bool
  torch::Tensor bools;
};

[[noreturn]] void fail_by_size(const HeaderEntry& entry, const Bytes& bytes) {
  fail(format_text(
      "\"{}\" of shape ({}) and dtype {} has {} bytes",
      entry.key,
      fmt::join(entry.shape, ", "),
      entry.dtype,
      bytes.size));
}

/// Returns the number of bits per element for dtypes smaller than a byte; 0 for
/// other dtypes.
int64_t bits_of_part(const std::string& dtype) {
  if (dtype == "F4") {
    return 4;
  }
  return dtype == "F6_E2M3" || dtype == "F6_E3M2" ? 6 : 0;
}

/// Returns a tensor whose elements are smaller than a byte; undefined if
/// LibTorch lacks its dtype or cannot represent its shape. LibTorch stores two
/// F4 numbers as one element.
torch::Tensor read_parts(const HeaderEntry& entry, const Bytes& bytes) {
  int64_t bits = bits_of_part(entry.dtype);
  for (const auto size : entry.shape) {
    if (__builtin_mul_overflow(bits, size, &bits)) {
      fail_by_size(entry, bytes);
    }
  }
  if (bits % 8 != 0 || static_cast<uint64_t>(bits / 8) != bytes.size) {
    fail_by_size(entry, bytes);
  }
  const auto dtype = dtype_from_python("torch.float4_e2m1fn_x2");
  auto shape = entry.shape;
  if (entry.dtype != "F4" || !dtype || shape.empty() || shape.back() % 2 != 0) {
    return {};
  }
  shape.back() /= 2;
  return view_tensor(bytes, {*dtype, shape, contiguous_strides(shape), 0});
}

/// Returns the tensor; undefined if LibTorch cannot represent it.
torch::Tensor read_tensor(const HeaderEntry& entry, const Bytes& bytes) {
  if (bits_of_part(entry.dtype) > 0) {
    return read_parts(entry, bytes);
  }
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
    fail_by_size(entry, bytes);
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

/// Checks that, if there are checksums, tensors and checksums match one to one:
/// a key may be damaged as well as a value.
void check_checksum_names(const Header& header) {
  size_t checksums = 0;
  for (const auto& [name, value] : header.metadata) {
    checksums += starts_with(name, kChecksum) ? 1 : 0;
  }
  if (checksums == 0) {
    return;
  }
  for (const auto& entry : header.entries) {
    if (header.metadata.count(checksum_name(entry.key)) == 0) {
      fail(format_text("\"{}\" has no checksum, but others have", entry.key));
    }
  }
  if (checksums != header.entries.size()) {
    fail(format_text(
        "it has {} checksums of {} tensors", checksums, header.entries.size()));
  }
}

} // namespace

std::string checksum_name(const std::string& key) {
  return kChecksum + key;
}

bool is_safetensors(const Bytes& file) {
  if (file.size <= kLengthBytes || header_length(file) > uint64_t{1} << 40) {
    return false;
  }
  const auto begin = file.text().find_first_not_of(" \t\r\n", kLengthBytes);
  return begin != std::string_view::npos && file.text()[begin] == '{';
}

WeightFile read_safetensors(const Bytes& file) {
  const auto header_bytes = header_of(file);
  auto header = read_header(header_bytes);
  const auto begin = kLengthBytes + header_bytes.size;
  const auto data = file.part(begin, file.size - begin);
  check_offsets(header.entries, static_cast<int64_t>(data.size));
  check_checksum_names(header);

  WeightFile result;
  result.format = "safetensors file";
  // Only tensors with something to check: a file may have a million.
  std::unordered_map<std::string, Checked> checked;
  for (const auto& entry : header.entries) {
    const auto bytes =
        data.part(entry.offsets[0], entry.offsets[1] - entry.offsets[0]);
    const auto tensor = read_tensor(entry, bytes);
    if (!tensor.defined()) {
      result.unreadable.emplace_back(
          entry.key,
          format_text(
              "has the dtype {} and shape ({}), of which this LibTorch has no "
              "tensors",
              entry.dtype,
              fmt::join(entry.shape, ", ")));
      continue;
    }
    result.tensors.insert(entry.key, tensor);
    const auto crc = stored_checksum(header.metadata, entry.key);
    const bool is_bool = tensor.scalar_type() == torch::kBool;
    if (crc || is_bool) {
      checked.emplace(
          entry.key, Checked{bytes, crc, is_bool ? tensor : torch::Tensor()});
    }
  }
  result.metadata = std::move(header.metadata);
  result.check =
      [checked = std::move(checked)](const std::vector<std::string>& keys) {
        for (const auto& key : keys) {
          const auto found = checked.find(key);
          if (found == checked.end()) {
            continue;
          }
          const auto& [bytes, crc, bools] = found->second;
          TORCH_ATTENTION_CHECK(
              !crc || crc32(bytes) == *crc,
              "the file is damaged: \"{}\" does not have the checksum (CRC-32) "
              "that was stored with it",
              key);
          if (bools.defined()) {
            check_values(key, bools);
          }
        }
      };
  return result;
}

} // namespace torch_attention::weights::files
