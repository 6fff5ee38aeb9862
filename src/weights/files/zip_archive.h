#pragma once

#include <weights/files/mapped_file.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch_attention::weights::files {

/// The records of a zip archive. Those stored as LibTorch does are used where
/// they lie in the file; a compressed one is unpacked, unless it claims to be
/// far larger than its bytes.
class ZipArchive {
 public:
  /// Throws c10::Error that says what is wrong with the archive.
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

  /// Returns the bytes of a record. Those of a stored one are not read, and
  /// their checksum is not compared. Throws c10::Error if there is no such
  /// record, or it cannot be unpacked.
  Bytes find(const std::string& name) const;

  /// Throws c10::Error if the checksum (CRC-32) of a record is not the one that
  /// the archive gives.
  void check(const std::string& name) const;

  /// Returns the bytes of a record after comparing its checksum, or throws as
  /// `find` and `check` do.
  Bytes read(const std::string& name) const;

 private:
  struct Record {
    /// The bytes as they lie in the file.
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
