#include <regular_file.h>

#include <format_text.h>

#include <c10/util/Exception.h>

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace torch_attention {

void check_regular_file(const std::string& path) {
  struct stat status {};
  TORCH_CHECK(
      ::stat(path.c_str(), &status) == 0,
      format_text("cannot read \"{}\": {}", path, std::strerror(errno)));
  TORCH_CHECK(
      S_ISREG(status.st_mode),
      format_text(
          "expected a regular file, but \"{}\" is a folder, pipe or device",
          path));
}

} // namespace torch_attention
