#include <weights/files/gguf_header.h>

#include <format_text.h>
#include <weights/files/tensor_view.h>
#include <weights/files/weight_file.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

namespace torch_attention::weights::files {

namespace {

constexpr size_t kMagicBytes = 4;
/// More than any file has: about fifty.
constexpr uint64_t kMaxMetadata = 100'000;
/// Lists of lists of lists. No file that llama.cpp reads has lists of lists.
constexpr int kMaxListDepth = 3;

// The types of metadata by their numbers.
constexpr uint32_t kFloat32 = 6;
constexpr uint32_t kBool = 7;
constexpr uint32_t kText = 8;
constexpr uint32_t kList = 9;
constexpr uint32_t kFloat64 = 12;

/// Returns the bytes of a number or bool in the metadata; 0 for other types.
size_t bytes_of_type(uint32_t type) {
  // uint8, int8, uint16, int16, uint32, int32, float32, bool, text, list,
  // uint64, int64, float64.
  constexpr std::array<size_t, 13> kBytes{
      1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < kBytes.size() ? kBytes[type] : 0;
}

template <typename T>
T gguf_number_at(const Bytes& file, size_t begin) {
  T value;
  std::memcpy(&value, file.data + begin, sizeof(value));
  return value;
}

/// Returns an integer that is not negative; none for other types and values.
std::optional<int64_t> integer_at(
    const Bytes& file,
    size_t begin,
    uint32_t type) {
  const auto checked = [](auto value) -> std::optional<int64_t> {
    constexpr auto kMax = std::numeric_limits<int64_t>::max();
    if (value < 0 || static_cast<uint64_t>(value) > uint64_t{kMax}) {
      return std::nullopt;
    }
    return static_cast<int64_t>(value);
  };
  switch (type) {
    case 0:
      return checked(gguf_number_at<uint8_t>(file, begin));
    case 1:
      return checked(gguf_number_at<int8_t>(file, begin));
    case 2:
      return checked(gguf_number_at<uint16_t>(file, begin));
    case 3:
      return checked(gguf_number_at<int16_t>(file, begin));
    case 4:
      return checked(gguf_number_at<uint32_t>(file, begin));
    case 5:
      return checked(gguf_number_at<int32_t>(file, begin));
    case 10:
      return checked(gguf_number_at<uint64_t>(file, begin));
    case 11:
      return checked(gguf_number_at<int64_t>(file, begin));
    default:
      return std::nullopt;
  }
}

/// Returns the number of the fewest digits that is stored as `value`.
double shortest(float value) {
  if (!std::isfinite(value)) {
    return value;
  }
  std::array<char, 32> digits{};
  const auto* end =
      std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  double result = value;
  std::from_chars(digits.data(), end, result);
  return result;
}

} // namespace

void fail_as_gguf(const std::string& problem) {
  constexpr size_t kMaxProblem = 1000;
  C10_THROW_ERROR(
      Error,
      "the file is damaged or no GGUF file: " +
          shortened(problem, kMaxProblem));
}

/// Reads a header from its beginning to its end.
class GgufHeader::Reader {
 public:
  explicit Reader(const Bytes& file) : file_(file) {}

  size_t at() const {
    return at_;
  }
  size_t left() const {
    return file_.size - at_;
  }

  void skip(uint64_t bytes) {
    if (bytes > left()) {
      fail_as_gguf(format_text(
          "its header ends after the file's {} bytes; it is cut short",
          file_.size));
    }
    at_ += bytes;
  }

  template <typename T>
  T number() {
    const auto begin = at_;
    skip(sizeof(T));
    return gguf_number_at<T>(file_, begin);
  }

  std::string_view text() {
    const auto length = number<uint64_t>();
    const auto begin = at_;
    skip(length);
    return file_.text().substr(begin, length);
  }

  /// Skips the values of a type: one, or the elements of a list.
  void skip_values(uint32_t type, uint64_t count, int depth) {
    const auto size = bytes_of_type(type);
    if (size > 0) {
      // Also fails if the product overflows.
      skip(count > left() / size ? left() + uint64_t{1} : count * size);
      return;
    }
    if (type != kText && type != kList) {
      fail_as_gguf(format_text("its metadata has a value of type {}", type));
    }
    for (uint64_t i = 0; i < count; ++i) {
      if (type == kText) {
        text();
      } else {
        skip_list(depth);
      }
    }
  }

 private:
  void skip_list(int depth) {
    if (depth == kMaxListDepth) {
      fail_as_gguf("its metadata has lists of lists of lists of lists");
    }
    const auto type = number<uint32_t>();
    const auto count = number<uint64_t>();
    skip_values(type, count, depth + 1);
  }

  const Bytes& file_;
  size_t at_ = 0;
};

GgufHeader::GgufHeader(const Bytes& file) : file_(file) {
  Reader reader(file_);
  reader.skip(kMagicBytes);
  const auto version = reader.number<uint32_t>();
  constexpr uint32_t kLowHalf = 0xFFFF;
  if (version != 0 && (version & kLowHalf) == 0) {
    C10_THROW_ERROR(
        Error,
        "the file is a big-endian GGUF file, which is not read. Convert it: "
        "gguf_convert_endian.py PATH little (in llama.cpp)");
  }
  if (version != 2 && version != 3) {
    C10_THROW_ERROR(
        Error,
        format_text(
            "the file is a GGUF file of version {}; versions 2 and 3 are read",
            version));
  }
  const auto tensors = reader.number<uint64_t>();
  const auto values = reader.number<uint64_t>();
  if (tensors > kMaxTensors) {
    fail_as_gguf(format_text(
        "its header claims {} tensors, more than a million", tensors));
  }
  if (values > kMaxMetadata) {
    fail_as_gguf(format_text(
        "its header claims {} values of metadata, more than {}",
        values,
        kMaxMetadata));
  }
  read_metadata(reader, values);
  read_tensors(reader, tensors);
  find_data(reader.at());
}

void GgufHeader::read_metadata(Reader& reader, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const auto key = reader.text();
    check_key_length(key);
    Value value;
    value.type = reader.number<uint32_t>();
    value.is_list = value.type == kList;
    if (value.is_list) {
      value.type = reader.number<uint32_t>();
      value.count = reader.number<uint64_t>();
    }
    value.begin = reader.at();
    reader.skip_values(value.type, value.count, value.is_list ? 1 : 0);
    if (!metadata_.emplace(key, value).second) {
      fail_as_gguf(format_text("its metadata has the key \"{}\" twice", key));
    }
  }
}

void GgufHeader::read_tensors(Reader& reader, uint64_t count) {
  std::set<std::string_view> names;
  for (uint64_t i = 0; i < count; ++i) {
    auto& tensor = tensors_.emplace_back();
    tensor.name = reader.text();
    check_key_length(tensor.name);
    if (!names.insert(tensor.name).second) {
      fail_as_gguf(format_text("it has the tensor \"{}\" twice", tensor.name));
    }
    const auto dimensions = reader.number<uint32_t>();
    if (dimensions > kMaxDimensions) {
      fail_as_gguf(
          format_text("\"{}\" has {} dimensions", tensor.name, dimensions));
    }
    for (uint32_t j = 0; j < dimensions; ++j) {
      const auto size = reader.number<int64_t>();
      if (size < 0) {
        fail_as_gguf(format_text(
            "\"{}\" has the size {} in its shape", tensor.name, size));
      }
      tensor.shape.push_back(size);
    }
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    tensor.type = reader.number<uint32_t>();
    tensor.offset = reader.number<uint64_t>();
  }
}

void GgufHeader::find_data(size_t end_of_header) {
  constexpr const char* kAlignment = "general.alignment";
  constexpr int64_t kDefault = 32;
  constexpr int64_t kLeast = 8;
  constexpr int64_t kMost = int64_t{1} << 30;
  const auto alignment =
      has(kAlignment) ? integer(kAlignment).value_or(0) : kDefault;
  if (alignment < kLeast || alignment > kMost ||
      (alignment & (alignment - 1)) != 0) {
    fail_as_gguf(format_text(
        "expected a power of two from 8 as its {}, but it has {}",
        kAlignment,
        integer(kAlignment) ? std::to_string(alignment) : "another value"));
  }
  alignment_ = static_cast<uint64_t>(alignment);
  const auto begin = (end_of_header + alignment_ - 1) / alignment_ * alignment_;
  // Without tensors there need be no padding.
  data_begin_ = std::min(begin, file_.size);
}

Bytes GgufHeader::data() const {
  return file_.part(data_begin_, file_.size - data_begin_);
}

std::optional<std::string_view> GgufHeader::text(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end() || found->second.type != kText ||
      found->second.is_list) {
    return std::nullopt;
  }
  const auto begin = found->second.begin;
  const auto length = gguf_number_at<uint64_t>(file_, begin);
  return file_.text().substr(begin + sizeof(length), length);
}

std::vector<std::string_view> GgufHeader::keys() const {
  std::vector<std::string_view> keys;
  keys.reserve(metadata_.size());
  for (const auto& [key, value] : metadata_) {
    keys.push_back(key);
  }
  return keys;
}

bool GgufHeader::is_list(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found != metadata_.end() && found->second.is_list;
}

uint64_t GgufHeader::length(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? 0 : found->second.count;
}

std::optional<std::pair<size_t, uint32_t>> GgufHeader::find_number(
    std::string_view key,
    uint64_t index) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end() || index >= found->second.count ||
      bytes_of_type(found->second.type) == 0) {
    return std::nullopt;
  }
  const auto& value = found->second;
  return std::pair{value.begin + index * bytes_of_type(value.type), value.type};
}

std::optional<int64_t> GgufHeader::integer(std::string_view key, uint64_t index)
    const {
  // A value that is no list is that of every element.
  const auto found = find_number(key, is_list(key) ? index : 0);
  return found ? integer_at(file_, found->first, found->second) : std::nullopt;
}

std::optional<double> GgufHeader::number(std::string_view key, uint64_t index)
    const {
  const auto found = find_number(key, index);
  if (found && found->second == kFloat32) {
    return shortest(gguf_number_at<float>(file_, found->first));
  }
  return found && found->second == kFloat64
      ? std::optional(gguf_number_at<double>(file_, found->first))
      : std::nullopt;
}

std::optional<bool> GgufHeader::flag(std::string_view key, uint64_t index)
    const {
  const auto found = find_number(key, index);
  return found && found->second == kBool
      ? std::optional(gguf_number_at<uint8_t>(file_, found->first) != 0)
      : std::nullopt;
}

std::optional<std::vector<std::string_view>> GgufHeader::texts(
    std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end() || !found->second.is_list ||
      found->second.type != kText) {
    return std::nullopt;
  }
  std::vector<std::string_view> texts;
  auto at = found->second.begin;
  for (uint64_t i = 0; i < found->second.count; ++i) {
    const auto length = gguf_number_at<uint64_t>(file_, at);
    at += sizeof(length);
    texts.push_back(file_.text().substr(at, length));
    at += length;
  }
  return texts;
}

} // namespace torch_attention::weights::files
