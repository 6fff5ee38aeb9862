// inspect_pretrained: cases that tests/tools/inspect_test.cpp leaves out.

#include <support/golden.h>
#include <support/pretrained.h>
#include <support/test.h>

namespace inspect_pretrained_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE("inspect_pretrained tells parts, types and layers apart") {
  const auto bart = inspect_pretrained(golden("pretrained/bart"));
  CHECK(bart.model_type == "bart");
  REQUIRE(bart.layers.size() == 3);
  CHECK(bart.layers[0].part == PretrainedPart::kEncoder);
  CHECK(bart.layers[1].part == PretrainedPart::kDecoder);
  CHECK_FALSE(bart.layers[1].is_cross);
  CHECK(bart.layers[2].is_cross);
  CHECK(bart.layers[2].numbers == std::vector<int64_t>{0, 1});

  const auto images =
      inspect_pretrained(golden("pretrained/gemma3_with_images"));
  CHECK(images.model_type == "gemma3");
  CHECK(images.layers.front().part == PretrainedPart::kText);
  CHECK(images.layers.front().model_type == "gemma3_text");
  CHECK(images.layers.back().model_type == "siglip_vision_model");

  const auto t5 = inspect_pretrained(golden("pretrained/t5"));
  CHECK(t5.layers.front().needs_bias);
  const auto latent = inspect_pretrained(golden("pretrained/deepseek_v3"));
  REQUIRE(latent.layers.size() == 1);
  CHECK(latent.layers.front().is_latent);

  auto shared = config_of("glm_moe_dsa");
  shared["indexer_types"] = {"full", "shared"};
  const Changed changed("glm_moe_dsa", shared);
  const auto refused = inspect_pretrained(changed.path());
  REQUIRE(refused.layers.size() == 2);
  CHECK(refused.layers[0].numbers == std::vector<int64_t>{0});
  CHECK(refused.layers[1].numbers.empty());
  CHECK_THAT(refused.layers[1].description, ContainsText("layer 1 of"));

  const auto relative = inspect_pretrained(golden("pretrained/cohere_asr"));
  REQUIRE(relative.layers.size() == 3);
  const auto& encoder = relative.layers.front();
  CHECK(encoder.part == PretrainedPart::kEncoder);
  CHECK(encoder.is_relative);
  CHECK_THAT(
      encoder.description,
      ContainsText("to both sides") &&
          ContainsText("sinusoids of relative positions"));
  CHECK_THAT(encoder.call, ContainsText("relative_attention_from_pretrained("));
  CHECK(encoder.options.empty());
  CHECK_FALSE(relative.layers[1].is_relative);
}

TEST_CASE("inspect_pretrained limits what a small configuration costs") {
  auto config = config_of("deepseek_v3");
  config["num_hidden_layers"] = 1'000'000'000;
  const Changed changed("deepseek_v3", config);
  THROWS_WITH(
      inspect_pretrained(changed.path()), "expected no more than 2000 layers");
}

TEST_CASE("inspect_pretrained refuses what it does not know") {
  auto config = config_of("llama");
  config["model_type"] = "lama";
  const Changed changed("llama", config);
  THROWS_WITH(inspect_pretrained(changed.path()), "the nearest is \"llama\"");
  THROWS_WITH(inspect_pretrained(golden("files")), "config.json");
}

} // namespace inspect_pretrained_test
