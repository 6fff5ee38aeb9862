// The configurations of the parts of a model.

#include <support/pretrained.h>

#include <string>

namespace pretrained_parts_test {

using namespace torch_attention;
using namespace torch_attention::testing;

using nlohmann::json;

TEST_CASE("Text in some models has the defaults of the model") {
  const auto text_of = [](const char* type, json text) {
    text.update(
        {{"hidden_size", 16},
         {"num_attention_heads", 4},
         {"num_hidden_layers", 2}});
    const json config{{"model_type", type}, {"text_config", text}};
    return options_from_config(
        Changed("llama", config).path(), 0, PretrainedPart::kText);
  };
  const auto voxtral = text_of("voxtral", {{"model_type", "llama"}});
  CHECK(voxtral.rotary()->theta() == 1e8);
  CHECK(voxtral.head_dim() == 128);
  CHECK(voxtral.num_kv_heads() == 8);
  const auto scaled = text_of(
      "voxtral_realtime",
      {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2.0}}}});
  CHECK(scaled.rotary()->theta() == 1e6);
  CHECK(scaled.rotary()->factor() == 2);
  CHECK(scaled.window() == 8192);
  // Fields of the file go before them.
  const auto given = text_of(
      "voxtral_realtime", {{"rope_theta", 7.0}, {"sliding_window", nullptr}});
  CHECK(given.rotary()->theta() == 7);
  CHECK_FALSE(given.window());
  CHECK(text_of("glmasr", json::object()).num_kv_heads() == 4);
}

TEST_CASE("A part that has parts of its own is refused") {
  const json config{
      {"model_type", "llava"},
      {"text_config",
       {{"model_type", "qwen3_5"},
        {"text_config",
         {{"model_type", "qwen3_5_text"}, {"num_attention_heads", 2}}}}}};
  THROWS_WITH(
      options_from_config(
          Changed("llama", config).path(), 0, PretrainedPart::kText),
      "but got a model with a text_config of its own");
}

TEST_CASE("A model of parts without the configuration of one is refused") {
  auto config = config_of("molmo2");
  const auto vision = [](const json& changed) {
    return options_from_config(
        Changed("molmo2", changed).path(), 0, PretrainedPart::kVision);
  };
  const auto expected = vision(config);
  config["vit_config"] = config["vision_config"];
  config.erase("vision_config");
  // The name of released files.
  CHECK(vision(config).head_dim() == expected.head_dim());
  CHECK(vision(config).num_heads() == expected.num_heads());
  config.erase("vit_config");
  THROWS_WITH(vision(config), "expected \"vit_config\"");
  config.erase("text_config");
  THROWS_WITH(
      options_from_config(Changed("molmo2", config).path(), 0),
      "expected \"text_config\"");
}

TEST_CASE("Classes of parts that a model gives are not those of the file") {
  auto config = config_of("clip");
  const auto causal = [&] {
    return options_from_config(
               Changed("clip", config).path(), 0, PretrainedPart::kText)
        .causal();
  };
  CHECK(causal());
  config["text_config"]["model_type"] = "siglip_text_model";
  CHECK(causal());
  config["text_config"]["model_type"] = "";
  CHECK(causal());
  // LLaVA takes the class from the file.
  config = config_of("llava");
  config["text_config"]["model_type"] = "nothing";
  THROWS_WITH(
      options_from_config(Changed("llava", config).path(), 0), "nothing");
  const json paligemma = config_of("paligemma");
  const auto load = [&](const char* type) {
    auto inner = paligemma;
    inner["model_type"] = type;
    const json outer{{"model_type", "colpali"}, {"vlm_config", inner}};
    return options_from_config(
        Changed("paligemma", outer).path(), 0, PretrainedPart::kText);
  };
  CHECK_NOTHROW(load("paligemma"));
  THROWS_WITH(load("llava"), "expected model_type \"paligemma\"");
}

TEST_CASE("Text at the top level is that of few models") {
  auto config = config_of("qwen2");
  config["model_type"] = "qwen2_vl";
  CHECK_NOTHROW(options_from_config(Changed("qwen2", config).path(), 0));
  config["model_type"] = "llava";
  THROWS_WITH(
      options_from_config(Changed("qwen2", config).path(), 0),
      "expected \"text_config\"");
  config = config_of("persimmon");
  config["model_type"] = "fuyu";
  config["partial_rotary_factor"] = 1.0;
  config["rope_parameters"] = {
      {"rope_type", "default"},
      {"rope_theta", 77.0},
      {"partial_rotary_factor", 1.0}};
  const auto options =
      options_from_config(Changed("persimmon", config).path(), 0);
  CHECK(options.rotary()->theta() != 77);
  const auto head_dim =
      options.head_dim().value_or(options.d_out() / options.num_heads());
  CHECK(options.rotary()->dim() == head_dim / 2);
}

TEST_CASE("Images of Gemma 4 Unified reach beyond windows") {
  auto config = config_of("gemma4_unified_text");
  config["use_bidirectional_attention"] = "vision";
  for (const int64_t layer : {0, 1}) {
    CAPTURE(layer);
    const auto options = options_from_config(
        Changed("gemma4_unified_text", config).path(), layer);
    CHECK(
        options.block_scope() ==
        (options.window() ? BlockScope::kWindow : BlockScope::kCausal));
  }
}

} // namespace pretrained_parts_test
