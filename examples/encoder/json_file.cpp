#include "json_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace encoder {

namespace {

nlohmann::json parse(const std::string& path) {
  TORCH_CHECK(is_file(path), "Expected a file ", path);
  try {
    return nlohmann::json::parse(read_file(path));
  } catch (const nlohmann::json::exception& error) {
    C10_THROW_ERROR(Error, c10::str(path, ": ", error.what()));
  }
}

} // namespace

bool is_file(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

std::string read_file(const std::string& path) {
  struct stat status = {};
  const auto found = ::stat(path.c_str(), &status) == 0;
  TORCH_CHECK(found, path, ": ", std::strerror(errno));
  TORCH_CHECK(
      !S_ISDIR(status.st_mode), path, ": expected a file, not a folder");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  // An empty file fails the stream that it is copied to.
  if (file && file.peek() != std::ifstream::traits_type::eof()) {
    bytes << file.rdbuf();
  }
  TORCH_CHECK(file && bytes, path, ": cannot be read");
  return bytes.str();
}

nlohmann::json read_json(const std::string& path) {
  auto object = parse(path);
  TORCH_CHECK(object.is_object(), path, ": expected an object");
  return object;
}

nlohmann::json read_json_array(const std::string& path) {
  auto array = parse(path);
  TORCH_CHECK(array.is_array(), path, ": expected an array");
  return array;
}

nlohmann::json read_json_if_there(const std::string& path) {
  return is_file(path) ? read_json(path) : nlohmann::json::object();
}

} // namespace encoder
