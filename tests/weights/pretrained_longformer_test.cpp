// Longformer and LED, whose tokens see a window and global tokens.

#include <support/close.h>
#include <support/pretrained.h>

#include <torch_attention/weights/inspect_pretrained.h>

#include <string>

namespace pretrained_longformer_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

LongformerAttentionOptions options_with(
    const nlohmann::json& window,
    int64_t layer) {
  auto config = config_of("longformer_first");
  config["attention_window"] = window;
  return longformer_options_from_config(
      Changed("longformer_first", config).path(), layer);
}

} // namespace

TEST_CASE("Each layer of a Longformer may have its own window") {
  CHECK(options_with(8, 1).attention_window() == 8);
  CHECK(options_with({2, 6}, 1).attention_window() == 6);
  THROWS_WITH(
      options_with({2, 6, 4}, 1),
      "expected 2 elements of \"attention_window\"");
  for (const auto& wrong : {0, 3, -2}) {
    CAPTURE(wrong);
    THROWS_WITH(
        options_with({2, wrong}, 1),
        "expected even numbers > 0 as \"attention_window\"");
    THROWS_WITH(
        options_with(wrong, 0),
        "expected even numbers > 0 as \"attention_window\"");
  }
  auto config = config_of("longformer_first");
  config.erase("attention_window");
  CHECK(
      longformer_options_from_config(
          Changed("longformer_first", config).path(), 0)
          .attention_window() == 512);
  config["position_embedding_type"] = "relative_key";
  THROWS_WITH(
      longformer_options_from_config(
          Changed("longformer_first", config).path(), 0),
      "position_embedding_type");
}

TEST_CASE("The layers of LED are inspected") {
  const auto led = inspect_pretrained(golden("pretrained/led_some"));
  REQUIRE(led.layers.size() == 4);
  const auto& encoder = led.layers.front();
  CHECK(encoder.part == PretrainedPart::kEncoder);
  CHECK(encoder.is_longformer);
  CHECK_THAT(
      encoder.description,
      ContainsText("to both sides") &&
          ContainsText("a window of 4 to each side beside global tokens"));
  CHECK_THAT(
      encoder.call,
      ContainsText("longformer_attention_from_pretrained(") &&
          ContainsText("PretrainedPart::kEncoder"));
  CHECK(encoder.options.empty());
  for (size_t i : {2, 3}) {
    CAPTURE(i, led.layers[i].description);
    CHECK_FALSE(led.layers[i].is_longformer);
    CHECK_FALSE(led.layers[i].call.empty());
  }
  THROWS_WITH(
      longformer_attention_from_pretrained(
          model_folder("led_some"),
          0,
          PretrainedOptions().part(PretrainedPart::kDecoder)),
      "has attention without relative positions and global tokens: "
      "attention_from_pretrained loads it");
}

TEST_CASE("A Longformer writes the file that it came from") {
  const auto attention =
      longformer_attention_from_pretrained(model_folder("longformer_first"), 1);
  const TemporaryFolder folder;
  const auto file = folder.file("saved.safetensors");
  save_weights(*attention, file);
  const auto saved = read_weights(file);
  const auto original =
      read_weights(model_folder("longformer_first") + "/model.safetensors");
  const std::string path = "encoder.layer.1.attention.";
  for (const std::string name : {"query", "key", "value"}) {
    for (const std::string end : {"", "_global"}) {
      CAPTURE(name, end);
      const auto* before =
          original.find(path + "self." + name + end + ".weight");
      REQUIRE(before != nullptr);
      const auto* now = saved.find("W_" + name + end + ".weight");
      REQUIRE(now != nullptr);
      CHECK_THAT(*now, IsEqualTo(*before));
    }
  }
}

} // namespace pretrained_longformer_test
