#include <weights/files/zip_writer.h>

#include <weights/files/checksum.h>

#include <algorithm>

namespace torch_attention::weights::files {

namespace {

// The names in https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kZip64End = 0x06064b50;
constexpr uint32_t kZip64Locator = 0x07064b50;
constexpr uint16_t kZip64Field = 1;
constexpr uint16_t kPaddingField = 0x4246; // "FB", as LibTorch calls it
constexpr uint16_t kVersion = 45; // the first with 64-bit sizes
constexpr uint16_t kNamesAreUtf8 = 1 << 11;
constexpr uint16_t kFirstDay = 0x21; // January 1, 1980

constexpr uint64_t kMax16 = 0xffff;
constexpr uint64_t kMax32 = 0xffffffff;
constexpr uint64_t kAlignment = 64;
constexpr size_t kLocalHeaderSize = 30;
constexpr size_t kFieldSize = 4;

/// Writes little-endian numbers one after the other.
class Numbers {
 public:
  Numbers& u16(uint64_t value) {
    return add(value, 2);
  }
  Numbers& u32(uint64_t value) {
    return add(value, 4);
  }
  Numbers& u64(uint64_t value) {
    return add(value, 8);
  }
  const std::string& bytes() const {
    return bytes_;
  }

 private:
  Numbers& add(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) {
      bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
    }
    return *this;
  }

  std::string bytes_;
};

/// Returns the value, or `max` if it is larger, which refers readers to a
/// 64-bit field.
uint64_t cut(uint64_t value, uint64_t max) {
  return std::min(value, max);
}

/// Returns the fields that the local and the central header of a record have in
/// common, up to the lengths of name and extra fields.
Numbers record_header(uint32_t signature, uint32_t crc, uint64_t size) {
  Numbers header;
  header.u32(signature);
  if (signature == kCentralHeader) {
    header.u16(kVersion); // of the writer
  }
  header.u16(kVersion).u16(kNamesAreUtf8).u16(0).u16(0).u16(kFirstDay);
  header.u32(crc).u32(cut(size, kMax32)).u32(cut(size, kMax32));
  return header;
}

} // namespace

void ZipWriter::write(const std::string& bytes) {
  file_.write(bytes.data(), bytes.size());
  position_ += bytes.size();
}

void ZipWriter::add(const std::string& name, const void* data, size_t size) {
  const auto crc = crc32({nullptr, static_cast<const uint8_t*>(data), size});
  const auto offset = position_;

  Numbers local_fields;
  Numbers central_values;
  if (size >= kMax32) {
    local_fields.u16(kZip64Field).u16(16).u64(size).u64(size);
    central_values.u64(size).u64(size);
  }
  if (offset >= kMax32) {
    central_values.u64(offset);
  }
  Numbers central_fields;
  const auto values = central_values.bytes().size();
  if (values > 0) {
    central_fields.u16(kZip64Field).u16(values);
  }

  const auto unpadded = offset + kLocalHeaderSize + name.size() +
      local_fields.bytes().size() + kFieldSize;
  const auto padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  local_fields.u16(kPaddingField).u16(padding);

  auto local = record_header(kLocalHeader, crc, size);
  local.u16(name.size()).u16(local_fields.bytes().size() + padding);
  write(
      local.bytes() + name + local_fields.bytes() + std::string(padding, '\0'));
  file_.write(data, size);
  position_ += size;

  auto central = record_header(kCentralHeader, crc, size);
  central.u16(name.size()).u16(central_fields.bytes().size() + values);
  central.u16(0).u16(0).u16(0).u32(0); // comment, disk, attributes
  central.u32(cut(offset, kMax32));
  directory_ +=
      central.bytes() + name + central_fields.bytes() + central_values.bytes();
  ++records_;
}

void ZipWriter::finish() {
  const auto offset = position_;
  const auto size = directory_.size();
  write(directory_);
  Numbers end;
  if (records_ >= kMax16 || size >= kMax32 || offset >= kMax32) {
    constexpr uint64_t kRestOfZip64End = 44;
    const auto zip64_end = position_;
    end.u32(kZip64End).u64(kRestOfZip64End).u16(kVersion).u16(kVersion);
    end.u32(0).u32(0).u64(records_).u64(records_).u64(size).u64(offset);
    end.u32(kZip64Locator).u32(0).u64(zip64_end).u32(1);
  }
  end.u32(kEnd).u16(0).u16(0);
  end.u16(cut(records_, kMax16)).u16(cut(records_, kMax16));
  end.u32(cut(size, kMax32)).u32(cut(offset, kMax32)).u16(0);
  write(end.bytes());
}

} // namespace torch_attention::weights::files
