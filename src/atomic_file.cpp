#include <atomic_file.h>

#include <format_text.h>

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

namespace torch_attention {

namespace {

/// The number of programs and threads that may write the same file at once.
constexpr int kParts = 64;

/// The number of symbolic links in a row that Linux follows.
constexpr int kLinks = 40;

constexpr const char* kPart = "torch-attention-part-";

const char* kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR:
      return "a folder";
    case S_IFIFO:
      return "a pipe";
    case S_IFSOCK:
      return "a socket";
    case S_IFCHR:
    case S_IFBLK:
      return "a device";
    default:
      return "no regular file";
  }
}

/// Returns the folder of a path, with a slash at its end; "" for the current
/// one.
std::string folder_of(const std::string& path) {
  return path.substr(0, path.rfind('/') + 1);
}

/// Returns the path at the end of symbolic links, even if there is no file.
std::string follow_links(std::string path) {
  for (int i = 0; i < kLinks; ++i) {
    std::array<char, PATH_MAX> target{};
    const auto size = ::readlink(path.c_str(), target.data(), target.size());
    if (size <= 0) {
      break; // not a link
    }
    const std::string text(target.data(), static_cast<size_t>(size));
    path = text.front() == '/' ? text : folder_of(path) + text;
  }
  return path;
}

bool lock(const Descriptor& file) {
  return ::flock(file.number(), LOCK_EX | LOCK_NB) == 0;
}

/// Returns whether the open file is the regular file `name` of `folder`.
bool is_named(
    const Descriptor& file,
    const Descriptor& folder,
    const std::string& name) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(file.number(), &opened) == 0 &&
      ::fstatat(folder.number(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) ==
      0 &&
      S_ISREG(opened.st_mode) && opened.st_dev == named.st_dev &&
      opened.st_ino == named.st_ino;
}

/// Writes the folder's entries to the disk. Not an error if the file system
/// does not support that.
void sync_folder(const Descriptor& folder) {
  const Descriptor readable(
      ::openat(folder.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (readable.is_open()) {
    ::fsync(readable.number());
  }
}

} // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  look_at_old_file();
  const auto target = follow_links(path_);
  if (target != path_) {
    target_ = format_text(" (a link to \"{}\")", target);
  }
  const auto folder = folder_of(target);
  name_ = target.substr(folder.size());
  if (name_.empty()) {
    fail("expected the name of a file");
  }
  // Names are resolved in this folder from here on, even if it is moved.
  folder_.open(::open(
      folder.empty() ? "." : folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder_.is_open()) {
    fail(format_text("its folder: {}", std::strerror(errno)));
  }
  choose_part_names();
  remove_abandoned_parts();
  create_part();
}

AtomicFile::~AtomicFile() {
  if (file_.is_open()) {
    ::unlinkat(folder_.number(), part_.c_str(), 0);
  }
}

void AtomicFile::fail(const std::string& reason) const {
  // The path is cut at a NUL byte, which would end the message.
  C10_THROW_ERROR(
      Error,
      format_text("cannot write \"{}\"{}: {}", path_.c_str(), target_, reason));
}

void AtomicFile::fail_with_errno() const {
  fail(std::strerror(errno));
}

void AtomicFile::look_at_old_file() {
  if (path_.find('\0') != std::string::npos) {
    fail("its name has a NUL byte");
  }
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) {
    if (errno != ENOENT) {
      fail_with_errno();
    }
    return;
  }
  if (!S_ISREG(status.st_mode)) {
    fail(format_text(
        "expected a regular file, but it is {}", kind_of(status.st_mode)));
  }
  // Renaming only needs rights to the folder, but a read-only file is meant to
  // be preserved.
  if (::faccessat(AT_FDCWD, path_.c_str(), W_OK, AT_EACCESS) != 0) {
    fail_with_errno();
  }
  old_ = {status.st_mode & 0777, status.st_uid, status.st_gid};
}

void AtomicFile::choose_part_names() {
  part_prefix_ = format_text("{}.{}", name_, kPart);
  struct stat ignored {};
  if (::fstatat(
          folder_.number(),
          part_name(kParts).c_str(),
          &ignored,
          AT_SYMLINK_NOFOLLOW) != 0 &&
      errno == ENAMETOOLONG) {
    const auto sum = ::crc32_z(
        0, reinterpret_cast<const Bytef*>(name_.data()), name_.size());
    part_prefix_ = format_text("{}{:08x}-", kPart, sum);
  }
}

std::string AtomicFile::part_name(int number) const {
  return part_prefix_ + std::to_string(number);
}

void AtomicFile::remove_abandoned_parts() const {
  for (int number = 0; number < kParts; ++number) {
    const auto name = part_name(number);
    const Descriptor part(::openat(
        folder_.number(),
        name.c_str(),
        O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    // Only the program that has locked a part may remove it.
    if (part.is_open() && lock(part) && is_named(part, folder_, name)) {
      ::unlinkat(folder_.number(), name.c_str(), 0);
    }
  }
}

void AtomicFile::create_part() {
  for (int number = 0; number < kParts; ++number) {
    part_ = part_name(number);
    file_.open(::openat(
        folder_.number(),
        part_.c_str(),
        O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
        // Prevents others from reading the part of a private file.
        old_ ? 0600 : 0666));
    if (!file_.is_open()) {
      if (errno == EEXIST) {
        continue;
      }
      fail(format_text("a new file in its folder: {}", std::strerror(errno)));
    }
    // Another program may have taken it for abandoned before it was locked. On
    // file systems without locks, no program removes parts.
    const bool is_taken = !lock(file_) && errno == EWOULDBLOCK;
    if (!is_taken && is_named(file_, folder_, part_)) {
      return;
    }
    file_.close();
  }
  fail(format_text(
      "{} others write it, or left \"{}\" to \"{}\" beside it",
      kParts,
      part_name(0),
      part_name(kParts - 1)));
}

void AtomicFile::write(const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const auto count = ::write(file_.number(), bytes, size);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail_with_errno();
    }
    bytes += count;
    size -= static_cast<size_t>(count);
  }
}

void AtomicFile::overwrite(uint64_t offset, const void* data, size_t size) {
  const auto end = ::lseek(file_.number(), 0, SEEK_END);
  if (end < 0 ||
      ::lseek(file_.number(), static_cast<off_t>(offset), SEEK_SET) < 0) {
    fail_with_errno();
  }
  write(data, size);
  if (::lseek(file_.number(), end, SEEK_SET) < 0) {
    fail_with_errno();
  }
}

void AtomicFile::keep_access() const {
  if (!old_) {
    return;
  }
  // Only the superuser can change the owner. Others can preserve the group if
  // they belong to it; otherwise its rights would go to another group.
  struct stat now {};
  const bool has_group =
      (::fstat(file_.number(), &now) == 0 && now.st_uid == old_->owner &&
       now.st_gid == old_->group) ||
      ::fchown(file_.number(), old_->owner, old_->group) == 0 ||
      ::fchown(file_.number(), static_cast<uid_t>(-1), old_->group) == 0;
  constexpr mode_t kGroup = S_IRWXG;
  ::fchmod(file_.number(), has_group ? old_->mode : old_->mode & ~kGroup);
}

void AtomicFile::commit() {
  keep_access();
  if (::fsync(file_.number()) != 0 ||
      ::renameat(
          folder_.number(), part_.c_str(), folder_.number(), name_.c_str()) !=
          0) {
    fail_with_errno();
  }
  // Closed last: the lock prevents others from removing the part.
  file_.close();
  sync_folder(folder_);
}

} // namespace torch_attention
