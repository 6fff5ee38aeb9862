#pragma once

#include <weights/files/descriptor.h>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace torch_attention::weights::files {

/// A file that takes the place of another one only when it is whole. Symbolic
/// links are followed; the mode of an existing file, and its owner where that
/// is allowed, are kept. The bytes go to a part file in the same folder, which
/// is locked: one that no program holds was left by a program that was ended,
/// and the next `AtomicFile` of the same path removes it.
class AtomicFile {
 public:
  /// Begins the new file. Throws c10::Error if it cannot, or `path` is there
  /// and no regular file.
  explicit AtomicFile(std::string path);

  /// Without `commit` the new file is removed, and the old one is as it was.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  AtomicFile(AtomicFile&&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;

  /// Throws c10::Error if not all can be written.
  void write(const void* data, size_t size);

  /// Writes over what was written at `offset`.
  void overwrite(uint64_t offset, const void* data, size_t size);

  /// Gives the file its name, all of its bytes being on the disk.
  void commit();

 private:
  /// What is kept of the file that is replaced.
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
  /// Where a link leads, for messages.
  std::string target_;
  std::optional<Access> old_;
  Descriptor folder_;
  /// Names in the folder.
  std::string name_;
  std::string part_prefix_;
  std::string part_;
  Descriptor file_;
};

} // namespace torch_attention::weights::files
