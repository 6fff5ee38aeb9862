// Models of several stacks: texts, images, encoders and decoders.

#include <support/close.h>
#include <support/pretrained.h>

#include <torch_attention/weights/inspect_pretrained.h>

#include <map>
#include <string>
#include <vector>

namespace pretrained_stacks_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;

} // namespace

TEST_CASE("Models of text and images have the layers of their text") {
  const std::map<std::string, std::string> types = {
      {"aria", "aria_text"},
      {"chinese_clip", ""},
      {"gemma3n", "gemma3n_text"},
      {"gemma4", "gemma4_text"},
      {"glm_ocr", "glm_ocr_text"},
      {"idefics3", "llama"},
      {"instructblip", "llama"},
      {"smolvlm", "llama"}};
  for (const auto& [type, text] : types) {
    CAPTURE(type);
    const json config = {
        {"model_type", type},
        {"text_config", config_of(text.empty() ? "bert" : text)},
        {"vision_config", config_of("chinese_clip_vision_model")}};
    const TemporaryFolder folder;
    std::ofstream(folder.file("config.json")) << config;
    const auto part =
        text.empty() ? PretrainedPart::kText : PretrainedPart::kAuto;
    const auto options = options_from_config(folder.path(), 1, part);
    CHECK(options.d_in() == 24);
    CHECK(options.causal() == !text.empty());
  }
}

TEST_CASE("Models of text and images have the layers of their images") {
  const std::vector<std::vector<std::string>> types = {
      {"glm4v", "glm4v_vision", "16"},
      {"glm4v_moe", "glm4v_moe_vision", "16"},
      {"glm_ocr", "glm_ocr_vision", "16"},
      {"internvl", "internvl_vision", "24"},
      {"llava_onevision", "mlcd_vision_model", "32"}};
  const auto options_of = [](const std::string& type, const json& vision) {
    const TemporaryFolder folder;
    std::ofstream(folder.file("config.json"))
        << json{{"model_type", type}, {"vision_config", vision}};
    return options_from_config(folder.path(), 1, PretrainedPart::kVision);
  };
  for (const auto& each : types) {
    CAPTURE(each[0]);
    auto vision = config_of(each[1]);
    auto options = options_of(each[0], vision);
    CHECK(std::to_string(options.d_in()) == each[2]);
    CHECK_FALSE(options.causal());
    CHECK(options.rotary().has_value() == (each[0] != "internvl"));
    CHECK(
        options.qk_norm().has_value() ==
        (each[2] == "24" || each[0] == "glm_ocr"));
  }
  // These model types are other names of the classes above.
  auto vision = config_of("mlcd_vision_model");
  vision["model_type"] = "mlcd";
  CHECK(options_of("llava_onevision", vision).rotary().has_value());
  vision["num_key_value_groups"] = 2;
  THROWS_WITH(
      options_of("llava_onevision", vision),
      "expected num_key_value_groups = 1");
  vision = config_of("blip_2").at("vision_config");
  vision["model_type"] = "instructblip_vision_model";
  vision["qkv_bias"] = false;
  CHECK_FALSE(options_of("instructblip", vision).qkv_bias());
}

TEST_CASE("Whether BLIP's text sees all depends on the class of the model") {
  const auto is_causal = [](const json& classes) {
    auto config = config_of("blip");
    config["architectures"] = classes;
    const Changed changed("blip", config);
    return options_from_config(changed.path(), 1, PretrainedPart::kText)
        .causal();
  };
  CHECK(is_causal({"BlipForConditionalGeneration"}));
  CHECK_FALSE(is_causal({"BlipForImageTextRetrieval"}));
  for (const auto& classes :
       {json(nullptr), json::array({"BlipForQuestionAnswering"})}) {
    THROWS_WITH(
        is_causal(classes),
        "expected BlipForConditionalGeneration, whose text");
  }
}

TEST_CASE("Cross-attention has options of its own") {
  const auto options = cross_options_from_config(model_folder("whisper"), 1);
  CHECK(options.d_context() == 24);
  CHECK(options.num_heads() == 2);
  CHECK(options.qkv_bias());
  CHECK(options.key_bias() == false);
  CHECK(
      options_from_config(model_folder("whisper"), 1, PretrainedPart::kEncoder)
          .num_heads() == 4);
}

TEST_CASE("Stacks may have configurations of their own") {
  const auto folder = model_folder("t5gemma");
  const auto cross = cross_options_from_config(folder, 0);
  CHECK(cross.d_in() == 24);
  CHECK(cross.d_context() == 16);
  CHECK(cross.softcap() == 2);
  const auto encoder = options_from_config(folder, 0, PretrainedPart::kEncoder);
  CHECK(encoder.d_in() == 16);
  CHECK(encoder.window() == 3);
  CHECK(encoder.window_after() == 2);
  CHECK(encoder.softcap() == 50);
  auto config = config_of("t5gemma");
  config["decoder"]["attention_sink_size"] = 4;
  const Changed changed("t5gemma", config);
  THROWS_WITH(
      options_from_config(changed.path(), 0, PretrainedPart::kDecoder),
      "config.json: decoder\" is 4; nothing is known of this field");
}

TEST_CASE("An encoder and a decoder may be whole models") {
  const auto options_of = [](const json& config, PretrainedPart part) {
    const TemporaryFolder folder;
    std::ofstream(folder.file("config.json")) << config;
    return options_from_config(folder.path(), 1, part);
  };
  json donut = {
      {"model_type", "vision-encoder-decoder"},
      {"encoder", {{"model_type", "donut-swin"}, {"depths", {2, 2}}}},
      {"decoder", config_of("mbart")}};
  CHECK(options_of(donut, PretrainedPart::kEncoder).d_in() == 96);
  donut["encoder"]["model_type"] = "swinv2";
  const auto decoder = options_of(donut, PretrainedPart::kDecoder);
  CHECK(decoder.causal());
  CHECK(decoder.num_heads() == 2);
  THROWS_WITH(
      options_of(donut, PretrainedPart::kEncoder), "model_type \"swinv2\" of");
  THROWS_WITH(
      options_of(donut, PretrainedPart::kAuto),
      "has the parts PretrainedPart::kEncoder and kDecoder, but part is auto");
  const json melody = {
      {"model_type", "musicgen_melody"},
      {"decoder",
       {{"model_type", "musicgen_melody_decoder"},
        {"hidden_size", 16},
        {"num_attention_heads", 4}}}};
  CHECK(options_of(melody, PretrainedPart::kAuto).num_heads() == 4);
  THROWS_WITH(
      options_of(melody, PretrainedPart::kEncoder),
      "has the part PretrainedPart::kDecoder alone, but part is encoder");
  // The decoder is listed, although the encoder is not computed.
  const TemporaryFolder folder;
  std::ofstream(folder.file("config.json")) << donut;
  const auto found = inspect_pretrained(folder.path()).layers;
  REQUIRE(found.size() == 3);
  CHECK(found[0].part == PretrainedPart::kEncoder);
  CHECK(found[0].numbers.empty());
  CHECK_THAT(
      found[0].description,
      ContainsText("the attention of model_type \"swinv2\""));
  CHECK(found[1].numbers == std::vector<int64_t>{0, 1});
  CHECK(found[1].model_type == "mbart");
  CHECK(found[2].is_cross);
}

TEST_CASE("A stack without weights does not take those of the other") {
  const Changed changed("encoder_decoder", config_of("encoder_decoder"));
  const auto file = changed.path() + "/model.safetensors";
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  for (const auto& item : read_weights(file)) {
    if (item.key().rfind("decoder.", 0) == 0) {
      tensors.insert(item.key(), item.value());
    }
  }
  write_weights(tensors, file);
  const auto part = [](PretrainedPart which) {
    return PretrainedOptions().part(which);
  };
  CHECK_NOTHROW(attention_from_pretrained(
      changed.path(), 0, part(PretrainedPart::kDecoder)));
  THROWS_WITH(
      attention_from_pretrained(
          changed.path(), 0, part(PretrainedPart::kEncoder)),
      "expected keys of \"encoder.layer.0.attention\"");
}

TEST_CASE("BERT has cross-attention if its configuration says so") {
  auto bert = config_of("bert");
  THROWS_WITH(
      cross_options_from_config(model_folder("bert"), 0),
      "has no cross-attention");
  bert["add_cross_attention"] = true;
  const Changed changed("bert", bert);
  CHECK(cross_options_from_config(changed.path(), 0).qkv_bias());
}

TEST_CASE("Moonshine has one number of heads in both stacks") {
  for (const auto* field :
       {"decoder_num_attention_heads",
        "decoder_num_key_value_heads",
        "encoder_num_attention_heads",
        "encoder_num_key_value_heads"}) {
    CAPTURE(field);
    auto config = config_of("moonshine");
    config[field] = 1;
    const Changed changed("moonshine", config);
    for (const auto part :
         {PretrainedPart::kEncoder, PretrainedPart::kDecoder}) {
      THROWS_WITH(
          options_from_config(changed.path(), 0, part),
          "expected as many heads of keys as of queries in both stacks of");
    }
  }
}

TEST_CASE("The learned prompt of MVP is refused by name") {
  auto config = config_of("mvp");
  CHECK_NOTHROW(options_from_config(
      Changed("mvp", config).path(), 0, PretrainedPart::kEncoder));
  config["use_prompt"] = true;
  THROWS_WITH(
      options_from_config(
          Changed("mvp", config).path(), 0, PretrainedPart::kEncoder),
      "expected use_prompt = false");
}

TEST_CASE("T5 has cross-attention as an encoder and decoder alone") {
  auto config = config_of("t5");
  config["is_encoder_decoder"] = false;
  const Changed changed("t5", config);
  CHECK_NOTHROW(
      options_from_config(changed.path(), 0, PretrainedPart::kDecoder));
  THROWS_WITH(
      cross_options_from_config(changed.path(), 0),
      "expected is_encoder_decoder = true");
}

TEST_CASE("A class that cannot be a decoder ignores is_decoder") {
  for (const auto* type : {"albert", "markuplm", "bert"}) {
    CAPTURE(type);
    auto config = config_of(type);
    config["is_decoder"] = true;
    const Changed changed(type, config);
    CHECK(
        options_from_config(changed.path(), 0).causal() ==
        (std::string(type) == "bert"));
  }
}

} // namespace pretrained_stacks_test
