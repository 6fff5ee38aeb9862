#include <config_file.h>

#include <check.h>
#include <format_text.h>

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace torch_attention {

Json read_json_file(const std::string& path, const ConfigLimits& limits) {
  // No configuration is nested deeper.
  constexpr size_t kDeepest = 64;
  struct stat status {};
  TORCH_ATTENTION_CHECK(
      ::stat(path.c_str(), &status) == 0,
      "cannot read \"{}\": {}",
      path,
      std::strerror(errno));
  TORCH_ATTENTION_CHECK(
      S_ISREG(status.st_mode) && status.st_size <= limits.bytes,
      "expected a configuration of at most {} bytes in \"{}\", but got {}",
      limits.bytes,
      path,
      S_ISREG(status.st_mode) ? format_text("{}", status.st_size)
                              : "no regular file");
  std::ifstream file(path, std::ios::binary);
  TORCH_ATTENTION_CHECK(file, "cannot read \"{}\"", path);
  return Json::parse(file, path, kDeepest, limits.values);
}

Json read_config_file(const std::string& path, const ConfigLimits& limits) {
  auto fields = read_json_file(path, limits);
  TORCH_ATTENTION_CHECK(
      fields.is_object(), "expected a JSON object in \"{}\"", path);
  return fields;
}

Json read_config_if_there(const std::string& path) {
  return std::filesystem::exists(path) ? read_config_file(path)
                                       : Json::object();
}

} // namespace torch_attention
