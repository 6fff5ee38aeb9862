#include <weights/files/zip_archive.h>

#include <check.h>
#include <weights/files/checksum.h>

#include <c10/util/Exception.h>

#include <libdeflate.h>
#include <zip.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

namespace torch_attention::weights::files {

namespace {

// Weights are random numbers that hardly compress. Zeros compress to 1/1000.
// All records together may unpack to this many times the file's size, plus a
// fixed number of bytes.
constexpr uint64_t kMaxRatio = 8;
constexpr uint64_t kFreeUnpackedBytes = uint64_t{32} << 20;

/// The source from which libzip reads. libzip does not report the offset of a
/// record in the file, so `last_read` records the offset of its last read.
struct Source {
  Bytes file;
  size_t position = 0;
  size_t last_read = 0;
  zip_error_t error{};
};

zip_int64_t read_bytes(Source& source, void* data, zip_uint64_t length) {
  const auto count =
      std::min<size_t>(length, source.file.size - source.position);
  source.last_read = source.position;
  std::memcpy(data, source.file.data + source.position, count);
  source.position += count;
  return static_cast<zip_int64_t>(count);
}

zip_int64_t seek(Source& source, void* data, zip_uint64_t length) {
  const auto position = zip_source_seek_compute_offset(
      source.position, source.file.size, data, length, &source.error);
  if (position < 0) {
    return -1;
  }
  source.position = static_cast<size_t>(position);
  return 0;
}

zip_int64_t describe(const Source& source, void* data) {
  auto* status = static_cast<zip_stat_t*>(data);
  zip_stat_init(status);
  status->size = source.file.size;
  status->valid |= ZIP_STAT_SIZE;
  return sizeof(*status);
}

/// Handles libzip's requests.
zip_int64_t answer(
    void* state,
    void* data,
    zip_uint64_t length,
    zip_source_cmd_t command) {
  auto& source = *static_cast<Source*>(state);
  switch (command) {
    case ZIP_SOURCE_OPEN:
      source.position = 0;
      return 0;
    case ZIP_SOURCE_READ:
      return read_bytes(source, data, length);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE:
      return 0;
    case ZIP_SOURCE_STAT:
      return describe(source, data);
    case ZIP_SOURCE_ERROR:
      return zip_error_to_data(&source.error, data, length);
    case ZIP_SOURCE_SEEK:
      return seek(source, data, length);
    case ZIP_SOURCE_TELL:
      return static_cast<zip_int64_t>(source.position);
    case ZIP_SOURCE_SUPPORTS:
      return ZIP_SOURCE_SUPPORTS_SEEKABLE;
    default:
      zip_error_set(&source.error, ZIP_ER_OPNOTSUPP, 0);
      return -1;
  }
}

struct Discard {
  void operator()(zip_t* archive) const {
    zip_discard(archive);
  }
};
using Archive = std::unique_ptr<zip_t, Discard>;

/// Frees the memory of an error at the end of the scope.
struct Finish {
  zip_error_t* error;
  ~Finish() {
    zip_error_fini(error);
  }
};

struct FreeDecompressor {
  void operator()(libdeflate_decompressor* decompressor) const {
    libdeflate_free_decompressor(decompressor);
  }
};

Archive open_archive(Source& source) {
  zip_error_t error;
  zip_error_init(&error);
  auto* callback = zip_source_function_create(answer, &source, &error);
  zip_t* archive = nullptr;
  if (callback != nullptr) {
    // CHECKCONS: the archive's directory must agree with the local headers.
    archive =
        zip_open_from_source(callback, ZIP_RDONLY | ZIP_CHECKCONS, &error);
    if (archive == nullptr) {
      zip_source_free(callback);
    }
  }
  Archive owned(archive);
  const Finish finish{&error};
  TORCH_ATTENTION_CHECK(
      owned != nullptr,
      "the file is cut or damaged: it begins as a zip file, but cannot "
      "be read as one ({})",
      zip_error_strerror(&error));
  return owned;
}

/// Returns the offset in the file at which the record's bytes begin.
size_t record_offset(zip_t& archive, Source& source, zip_uint64_t index) {
  auto* file = zip_fopen_index(&archive, index, ZIP_FL_COMPRESSED);
  TORCH_ATTENTION_CHECK(
      file != nullptr,
      "the file is damaged: {}",
      zip_error_strerror(zip_get_error(&archive)));
  char byte = 0;
  const auto count = zip_fread(file, &byte, 1);
  zip_fclose(file);
  TORCH_CHECK(
      count == 1, "the file is damaged: a record ends before it begins");
  return source.last_read;
}

void check_overlaps(std::vector<std::pair<size_t, size_t>> ranges) {
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    TORCH_CHECK(
        ranges[i - 1].second <= ranges[i].first,
        "the file is damaged or malicious: records of the zip file overlap");
  }
}

/// Returns the archive without line breaks after its end, which a transfer in
/// text mode or an editor may add. Python ignores them as well.
Bytes without_line_breaks(const Bytes& file) {
  constexpr std::string_view kEndSignature("PK\x05\x06", 4);
  constexpr size_t kEndSize = 22;
  const auto text = file.text();
  const auto size = text.find_last_not_of("\r\n") + 1;
  // An archive with a comment is returned unchanged.
  const bool is_end = size >= kEndSize &&
      text.substr(size - kEndSize, kEndSignature.size()) == kEndSignature &&
      text.substr(size - 2, 2) == std::string_view("\0\0", 2);
  return is_end ? file.part(0, size) : file;
}

} // namespace

ZipArchive::ZipArchive(const Bytes& whole) : file_(without_line_breaks(whole)) {
  const auto& file = file_;
  Source source{file};
  zip_error_init(&source.error);
  const auto archive = open_archive(source);
  std::vector<std::pair<size_t, size_t>> ranges;
  uint64_t packed = 0;
  uint64_t unpacked = 0;
  const auto count = zip_get_num_entries(archive.get(), 0);
  for (zip_uint64_t i = 0; i < static_cast<zip_uint64_t>(count); ++i) {
    zip_stat_t status;
    zip_stat_init(&status);
    TORCH_CHECK(
        zip_stat_index(archive.get(), i, ZIP_FL_ENC_RAW, &status) == 0 &&
            (status.valid & ZIP_STAT_NAME) != 0,
        "the file is damaged: a record of the zip file has no name");
    const std::string name = status.name;
    Record record;
    record.crc = status.crc;
    record.size = status.size;
    const bool is_plain = status.encryption_method == ZIP_EM_NONE;
    record.stored = is_plain && status.comp_method == ZIP_CM_STORE;
    record.deflated = is_plain && status.comp_method == ZIP_CM_DEFLATE;
    const bool is_read = record.stored || record.deflated;
    const auto offset = is_read && status.comp_size > 0
        ? record_offset(*archive, source, i)
        : 0;
    TORCH_ATTENTION_CHECK(
        (!record.stored || status.comp_size == status.size) &&
            (!is_read || status.comp_size <= file.size - offset),
        "the file is damaged: the zip record \"{}\" has {} bytes, more "
        "than there are",
        name,
        status.size);
    if (is_read && status.comp_size > 0) {
      record.bytes = file.part(offset, status.comp_size);
      ranges.emplace_back(offset, offset + status.comp_size);
    }
    if (record.deflated) {
      TORCH_ATTENTION_CHECK(
          record.size <= kMaxRatio * file.size + kFreeUnpackedBytes - unpacked,
          "the file is damaged or malicious: the zip record \"{}\" of {} "
          "bytes claims to unpack to {}",
          name,
          status.comp_size,
          record.size);
      unpacked += record.size;
    }
    packed += std::min<uint64_t>(status.comp_size, file.size + 1);
    TORCH_CHECK(
        packed <= file.size,
        "the file is damaged or malicious: the records of the zip file are "
        "larger than it");
    TORCH_ATTENTION_CHECK(
        records_.emplace(name, std::move(record)).second,
        "the file is damaged or malicious: the zip file has two records "
        "\"{}\"",
        name);
    names_.push_back(name);
  }
  check_overlaps(std::move(ranges));
}

const ZipArchive::Record& ZipArchive::record(const std::string& name) const {
  const auto found = records_.find(name);
  TORCH_ATTENTION_CHECK(
      found != records_.end(),
      "the file is damaged: there is no record \"{}\"",
      name);
  return found->second;
}

Bytes ZipArchive::find(const std::string& name) const {
  const auto& found = record(name);
  return found.stored ? found.bytes : unpack(name, found);
}

Bytes ZipArchive::unpack(const std::string& name, const Record& record) {
  TORCH_ATTENTION_CHECK(
      record.deflated,
      "the zip record \"{}\" is encrypted, or compressed otherwise than "
      "by deflate",
      name);
  auto unpacked = std::make_shared<std::vector<uint8_t>>(record.size);
  const std::unique_ptr<libdeflate_decompressor, FreeDecompressor> decompressor(
      libdeflate_alloc_decompressor());
  if (decompressor == nullptr) {
    throw std::bad_alloc();
  }
  const auto result = libdeflate_deflate_decompress(
      decompressor.get(),
      record.bytes.data,
      record.bytes.size,
      unpacked->data(),
      unpacked->size(),
      /*actual_out_nbytes_ret=*/nullptr);
  const auto* data = unpacked->data();
  const Bytes bytes{std::move(unpacked), data, record.size};
  TORCH_ATTENTION_CHECK(
      result == LIBDEFLATE_SUCCESS && crc32(bytes) == record.crc,
      "the file is damaged: the zip record \"{}\" cannot be unpacked, or "
      "has not its checksum (CRC-32)",
      name);
  return bytes;
}

void ZipArchive::check(const std::string& name) const {
  const auto& found = record(name);
  if (!found.stored) {
    return; // checked by `unpack`
  }
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  TORCH_ATTENTION_CHECK(
      crc32(found.bytes) == found.crc,
      "the file is damaged: the record \"{}\" does not have the checksum "
      "(CRC-32) that was stored with it",
      name);
#endif
}

Bytes ZipArchive::read(const std::string& name) const {
  auto bytes = find(name);
  check(name);
  return bytes;
}

} // namespace torch_attention::weights::files
