#include <weights/pretrained/pairs.h>

#include <format_text.h>

#include <c10/util/Exception.h>

#include <map>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

const std::map<std::string, Pair>& pairs() {
  static const std::map<std::string, Pair> table{
      {"dia",
       {"encoder_config", "decoder_config", "dia_encoder", "dia_decoder"}},
      {"encoder-decoder", {"encoder", "decoder", "bert", "bert"}},
      {"florence2",
       {"text_config",
        "text_config",
        "bart",
        "bart",
        "language_model.",
        "language_model."}},
      {"musicgen", {nullptr, "decoder", "", "musicgen_decoder"}},
      {"musicgen_melody", {nullptr, "decoder", "", "musicgen_melody_decoder"}},
      {"nougat", {"encoder", "decoder", "donut_swin", "mbart"}},
      {"speech-encoder-decoder", {"encoder", "decoder", "wav2vec2", "bert"}},
      {"vision-encoder-decoder", {"encoder", "decoder", "vit", "bert"}},
  };
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

ModelPart stack_of(ModelConfig& whole, const Pair& pair, PretrainedPart part) {
  if (part == PretrainedPart::kAuto && !pair.has_encoder()) {
    part = PretrainedPart::kDecoder;
  }
  const bool is_encoder = part == PretrainedPart::kEncoder;
  TORCH_CHECK(
      part == PretrainedPart::kDecoder || (is_encoder && pair.has_encoder()),
      format_text(
          "the model of \"{}\" has {}, but part is {}",
          whole.path(),
          pair.has_encoder() ? "the parts PretrainedPart::kEncoder and kDecoder"
                             : "the part PretrainedPart::kDecoder alone",
          name_of(part)));
  const auto* field = is_encoder ? pair.encoder_field : pair.decoder_field;
  TORCH_CHECK(
      whole.has(field),
      format_text(
          "expected \"{}\" in \"{}\", which has none", field, whole.path()));
  whole.check_no_more(whole.text("model_type").value_or(""));
  auto inner = whole.nested(field);
  auto type = inner.text("model_type")
                  .value_or(is_encoder ? pair.encoder_type : pair.decoder_type);
  return {
      std::move(inner),
      std::move(type),
      part,
      /*within=*/"",
      is_encoder ? pair.encoder_root : pair.decoder_root};
}

} // namespace torch_attention::weights::pretrained
