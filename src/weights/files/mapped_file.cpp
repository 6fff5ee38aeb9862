#include <weights/files/mapped_file.h>

#include <check.h>
#include <descriptor.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace torch_attention::weights::files {

Bytes MappedFile::open(const std::string& path) {
  // Not std::filesystem: LibTorch's wheels export an older version of parts of
  // it, and the link order decides which one a program gets. With O_NONBLOCK,
  // opening a named pipe does not wait for a writer.
  const Descriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  TORCH_ATTENTION_CHECK(
      file.number() >= 0,
      "{}{}{}",
      errno == ENOENT ? "there is no file \"" : "cannot read \"",
      path,
      errno == ENOENT ? "\"" : std::string("\": ") + std::strerror(errno));
  struct stat status {};
  TORCH_ATTENTION_CHECK(
      ::fstat(file.number(), &status) == 0,
      "cannot read \"{}\": {}",
      path,
      std::strerror(errno));
  TORCH_ATTENTION_CHECK(
      S_ISREG(status.st_mode),
      "\"{}\" is not a file, but a folder or device",
      path);
  const auto size = static_cast<size_t>(status.st_size);
  TORCH_ATTENTION_CHECK(size > 0, "\"{}\" is empty", path);
  // Allocated before the mapping: if memory runs out here, nothing has to be
  // unmapped.
  const std::shared_ptr<MappedFile> mapped(new MappedFile(nullptr, 0));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number(), 0);
  TORCH_ATTENTION_CHECK(
      data != MAP_FAILED,
      "cannot map \"{}\" into memory: {}",
      path,
      std::strerror(errno));
  mapped->data_ = static_cast<const uint8_t*>(data);
  mapped->size_ = size;
  return {mapped, mapped->data_, size, /*mapped=*/true};
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<uint8_t*>(data_), size_);
  }
}

void make_writable(const Bytes& file) {
  if (!file.mapped) {
    return;
  }
  auto* data = const_cast<uint8_t*>(file.data);
  TORCH_ATTENTION_CHECK(
      ::mprotect(data, file.size, PROT_READ | PROT_WRITE) == 0,
      "cannot make the mapped file writable in memory: {}",
      std::strerror(errno));
}

void release(const Bytes& bytes) {
  if (!bytes.mapped) {
    return;
  }
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data);
  // Whole pages only: the first and the last page may hold other bytes, too.
  const auto first = (begin + page - 1) / page * page;
  const auto last = (begin + bytes.size) / page * page;
  if (first < last) {
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
}

} // namespace torch_attention::weights::files
