#include <weights/files/atomic_file.h>

#include <format_text.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace torch_attention {

namespace {

/// Brings a new name to the disk; some file systems cannot, which is no error.
void sync_folder(const std::string& folder) {
  const int descriptor =
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0) {
    ::fsync(descriptor);
    ::close(descriptor);
  }
}

} // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  // Several programs, and several threads of one, may write the same file.
  for (int attempt = 0; descriptor_ < 0 && attempt < 1000; ++attempt) {
    temporary_ = path_ + ".part-" + std::to_string(::getpid()) + "-" +
        std::to_string(attempt);
    descriptor_ = ::open(
        temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) {
      break;
    }
  }
  if (descriptor_ < 0) {
    temporary_.clear();
    fail("write");
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::fail(const char* what) const {
  C10_THROW_ERROR(
      Error,
      format_text("cannot {} \"{}\": {}", what, path_, std::strerror(errno)));
}

void AtomicFile::write(const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const auto count = ::write(descriptor_, bytes, size);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail("write");
    }
    bytes += count;
    size -= static_cast<size_t>(count);
  }
}

void AtomicFile::overwrite(uint64_t offset, const void* data, size_t size) {
  const auto end = ::lseek(descriptor_, 0, SEEK_END);
  if (end < 0 ||
      ::lseek(descriptor_, static_cast<off_t>(offset), SEEK_SET) < 0) {
    fail("write");
  }
  write(data, size);
  if (::lseek(descriptor_, end, SEEK_SET) < 0) {
    fail("write");
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) {
    fail("write");
  }
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("write");
  }
  temporary_.clear();
  sync_folder(folder_of(path_));
}

} // namespace torch_attention
