#include <weights/read.h>

#include <weights/torchscript.h>

#include <c10/util/Exception.h>

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

namespace torch_attention {

namespace {

std::string first_bytes(const std::string& path, size_t count) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "cannot read \"", path, "\": permission denied?");
  std::string bytes(count, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(count));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

} // namespace

WeightFile read_weight_file(const std::string& path) {
  // Not std::filesystem: LibTorch's wheels export older parts of it, and which
  // ones a program gets is decided by its link order.
  struct stat status {};
  TORCH_CHECK(
      stat(path.c_str(), &status) == 0,
      errno == ENOENT ? "there is no file \"" : "cannot read \"",
      path,
      errno == ENOENT ? "\"" : std::string("\": ") + std::strerror(errno));
  TORCH_CHECK(
      S_ISREG(status.st_mode),
      "\"",
      path,
      "\" is not a file, but a folder or device");
  const auto bytes = first_bytes(path, 4);
  TORCH_CHECK(!bytes.empty(), "\"", path, "\" is empty");
  TORCH_CHECK(
      starts_with(bytes, "PK\x03\x04"),
      "\"",
      path,
      "\" is not a TorchScript archive: it is no zip file. Make one in Python "
      "with torch.jit.trace(module, input).save(path)");
  return {"TorchScript archive", read_torchscript(path)};
}

} // namespace torch_attention
