#include <weights/pretrained/pairs.h>

#include <check.h>
#include <weights/pretrained/models_file.h>

#include <map>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

Stack read_stack(const Json& stacks, const std::string& name) {
  const auto& fields = stacks.get(name);
  return {
      fields.get("type").as_text().value_or(""),
      fields.get("field").as_text().value_or(name),
      fields.get("root").as_text().value_or(name + "."),
      fields.get("defaults"),
      fields.get("fixed").as_flag().value_or(false)};
}

const std::map<std::string, Pair>& pairs() {
  static const auto table = [] {
    std::map<std::string, Pair> all;
    for (const auto& [type, entry] : model_entries()) {
      if (entry.stacks.is_object()) {
        Pair pair;
        if (entry.stacks.contains("encoder")) {
          pair.encoder = read_stack(entry.stacks, "encoder");
        }
        pair.decoder = read_stack(entry.stacks, "decoder");
        all.emplace(type, std::move(pair));
      }
    }
    return all;
  }();
  return table;
}

} // namespace

const Pair* find_pair(const std::string& model_type) {
  const auto found = pairs().find(model_type);
  return found == pairs().end() ? nullptr : &found->second;
}

std::vector<std::string> pair_types() {
  std::vector<std::string> types;
  for (const auto& [type, pair] : pairs()) {
    types.push_back(type);
  }
  return types;
}

ModelPart stack_of(ModelConfig& outer, const Pair& pair, PretrainedPart part) {
  if (part == PretrainedPart::kAuto && !pair.encoder) {
    part = PretrainedPart::kDecoder;
  }
  const bool is_encoder = part == PretrainedPart::kEncoder;
  TORCH_ATTENTION_CHECK(
      part == PretrainedPart::kDecoder || (is_encoder && pair.encoder),
      "the model of \"{}\" has {}, but part is {}",
      outer.path(),
      pair.encoder ? "the parts PretrainedPart::kEncoder and kDecoder"
                   : "the part PretrainedPart::kDecoder alone",
      name_of(part));
  const auto& stack = is_encoder ? *pair.encoder : pair.decoder;
  const auto type = outer.text("model_type").value_or("");
  if (stack.field.empty()) {
    return {outer, type, part, /*within=*/"", stack.root};
  }
  TORCH_ATTENTION_CHECK(
      outer.has(stack.field),
      "expected \"{}\" in \"{}\", which has none",
      stack.field,
      outer.path());
  if (type == "maskformer") {
    // A copy of its decoder's.
    outer.ignore("num_attention_heads");
  }
  // Otherwise the outer configuration is the decoder's.
  if (!pair.decoder.field.empty()) {
    outer.check_no_more(type);
  }
  auto inner = outer.nested(stack.field);
  inner.add_missing(stack.defaults);
  const auto own_type = inner.text("model_type").value_or(stack.type);
  auto inner_type = stack.is_fixed ? stack.type : own_type;
  return {
      std::move(inner),
      std::move(inner_type),
      part,
      /*within=*/"",
      stack.root};
}

} // namespace torch_attention::weights::pretrained
