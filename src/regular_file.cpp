#include <regular_file.h>

#include <check.h>

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace torch_attention {

void check_regular_file(const std::string& path) {
  struct stat status {};
  TORCH_ATTENTION_CHECK(
      ::stat(path.c_str(), &status) == 0,
      "cannot read \"{}\": {}",
      path,
      std::strerror(errno));
  TORCH_ATTENTION_CHECK(
      S_ISREG(status.st_mode),
      "expected a regular file, but \"{}\" is a folder, pipe or device",
      path);
}

} // namespace torch_attention
