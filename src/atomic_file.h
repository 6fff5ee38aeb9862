#pragma once

#include <descriptor.h>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace torch_attention {

/// A file that replaces another one only when it is complete. Follows symbolic
/// links; preserves the mode of an existing file, and its owner where
/// permitted. The bytes are written to a locked part file in the same folder. A
/// part without a lock was left by a program that was terminated; the next
/// `AtomicFile` for the same path removes it.
class AtomicFile {
 public:
  /// Starts the new file. Throws c10::Error if that fails, or if `path` exists
  /// and is not a regular file.
  explicit AtomicFile(std::string path);

  /// Removes the new file unless it was committed; the old one has not changed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  AtomicFile(AtomicFile&&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;

  /// Appends bytes. Throws c10::Error if not all of them can be written.
  void write(const void* data, size_t size);

  /// Overwrites bytes at `offset`, which must be written already.
  void overwrite(uint64_t offset, const void* data, size_t size);

  /// Replaces the old file, once all bytes are on the disk.
  void commit();

 private:
  /// The access rights of the old file, which the new one gets.
  struct Access {
    mode_t mode;
    uid_t owner;
    gid_t group;
  };

  [[noreturn]] void fail(const std::string& reason) const;
  [[noreturn]] void fail_with_errno() const;
  void look_at_old_file();
  void choose_part_names();
  std::string part_name(int number) const;
  void remove_abandoned_parts() const;
  void create_part();
  void keep_access() const;

  std::string path_;
  /// The target of a symbolic link, for messages.
  std::string target_;
  std::optional<Access> old_;
  Descriptor folder_;
  /// Names in the folder.
  std::string name_;
  std::string part_prefix_;
  std::string part_;
  Descriptor file_;
};

} // namespace torch_attention
