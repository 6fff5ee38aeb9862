#include <weights/quantization_beside.h>

#include <check.h>
#include <config_file.h>
#include <weights/text.h>

#include <unistd.h>

namespace torch_attention::weights {

namespace {

std::optional<Json> object_in(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0
      ? std::optional(read_config_file(path))
      : std::nullopt;
}

std::optional<Json> settings_in(const Json& config) {
  for (const auto* name : {"quantization_config", "compression_config"}) {
    if (auto object = config.get(name).as_object()) {
      return object;
    }
  }
  return std::nullopt;
}

/// Returns the version of GPTQ's format: without the field it is the first.
std::string format_of(const Json& settings) {
  return settings.get("checkpoint_format").as_text().value_or("gptq");
}

} // namespace

std::optional<Json> quantization_beside(const std::string& path) {
  const auto folder = folder_of(path);
  std::optional<Json> found;
  if (const auto config = object_in(folder + "config.json")) {
    found = settings_in(*config);
    if (!found) {
      found = settings_in(config->get("text_config"));
    }
  }
  for (const auto* name : {"quantize_config.json", "quant_config.json"}) {
    auto other = object_in(folder + name);
    if (!found) {
      found = std::move(other);
    } else if (other) {
      TORCH_ATTENTION_CHECK(
          format_of(*found) == format_of(*other),
          "the checkpoint_format is \"{}\" in \"{}config.json\" and \"{}\" in "
          "\"{}\" beside it",
          format_of(*found),
          folder,
          format_of(*other),
          name);
    }
  }
  return found;
}

} // namespace torch_attention::weights
