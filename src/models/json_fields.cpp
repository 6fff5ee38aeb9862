#include <models/json_fields.h>

#include <regular_file.h>

#include <fstream>

namespace torch_attention::models {

nlohmann::json read_json(const std::string& path) {
  check_regular_file(path);
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, format_text("cannot read \"{}\"", path));
  auto object =
      nlohmann::json::parse(file, /*cb=*/nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK(
      object.is_object(),
      format_text("expected a JSON object in \"{}\"", path));
  return object;
}

} // namespace torch_attention::models
