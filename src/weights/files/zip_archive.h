#pragma once

#include <weights/files/mapped_file.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch_attention::weights::files {

/// The records of a zip archive. Stored records, as LibTorch writes them, are
/// used in place. Compressed ones are unpacked, unless they claim to be many
/// times larger than the file.
class ZipArchive {
 public:
  /// Throws c10::Error if the archive is invalid.
  explicit ZipArchive(const Bytes& file);

  /// Returns the names in the order of the archive.
  const std::vector<std::string>& names() const {
    return names_;
  }

  /// Returns the size of the file.
  size_t size() const {
    return file_.size;
  }

  bool contains(const std::string& name) const {
    return records_.count(name) > 0;
  }

  /// Returns the bytes of a record. Stored records are neither read nor
  /// checked. Throws c10::Error if there is no such record, or if it cannot be
  /// unpacked.
  Bytes find(const std::string& name) const;

  /// Throws c10::Error if a stored record does not have the checksum (CRC-32)
  /// in the archive. Compressed records are checked when they are unpacked.
  void check(const std::string& name) const;

  /// Returns the bytes of a record after verifying its checksum. Throws the
  /// errors of `find` and `check`.
  Bytes read(const std::string& name) const;

 private:
  struct Record {
    /// The bytes in the file, which may be compressed.
    Bytes bytes;
    uint32_t crc = 0;
    bool stored = false;
    bool deflated = false;
    uint64_t size = 0;
  };

  const Record& record(const std::string& name) const;
  static Bytes unpack(const std::string& name, const Record& record);

  Bytes file_;

  std::vector<std::string> names_;
  std::unordered_map<std::string, Record> records_;
};

} // namespace torch_attention::weights::files
