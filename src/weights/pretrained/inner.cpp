#include <weights/pretrained/inner.h>

#include <check.h>
#include <weights/pretrained/models_file.h>

#include <map>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

const std::map<std::string, Inner>& inner_models() {
  static const auto table = [] {
    std::map<std::string, Inner> all;
    for (const auto& [model_type, entry] : model_entries()) {
      if (!entry.inner.is_object()) {
        continue;
      }
      const auto text = [&inner = entry.inner](const char* key) {
        return inner.get(key).as_text().value_or("");
      };
      all.emplace(
          model_type,
          Inner{
              text("type"),
              text("field"),
              text("within"),
              entry.inner.get("fixed").as_flag().value_or(false)});
    }
    return all;
  }();
  return table;
}

} // namespace

const Inner* find_inner(const std::string& model_type) {
  const auto found = inner_models().find(model_type);
  return found == inner_models().end() ? nullptr : &found->second;
}

std::vector<std::string> inner_types() {
  std::vector<std::string> types;
  for (const auto& [model_type, inner] : inner_models()) {
    types.push_back(model_type);
  }
  return types;
}

ModelPart model_in(
    ModelConfig& outer,
    const Inner& inner,
    PretrainedPart part) {
  const auto* family = family_of(inner.type);
  TORCH_ATTENTION_CHECK(
      part == PretrainedPart::kAuto ||
          (family != nullptr && family->has_parts()),
      "the model of \"{}\" has no parts, but part is {}",
      outer.path(),
      name_of(part));
  TORCH_ATTENTION_CHECK(
      outer.has(inner.field),
      "expected \"{}\" in \"{}\", which has none",
      inner.field,
      outer.path());
  auto config = outer.nested(inner.field);
  const auto own_type = config.text("model_type").value_or(inner.type);
  auto type = inner.is_fixed ? inner.type : own_type;
  return {std::move(config), std::move(type), part, inner.within};
}

} // namespace torch_attention::weights::pretrained
