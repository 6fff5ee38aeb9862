// Windows of images within which layers of pretrained models attend.

#include <support/close.h>
#include <support/known_attention.h>
#include <support/pretrained.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace pretrained_image_windows_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace {

/// The windows of a layer. Whole models have no shift where a side is not
/// larger than a window; backbones have it for every image.
ImageWindowOptions windows_of(
    const KnownAttention& known,
    const torch::Tensor& image) {
  auto windows = windows_from_config(
      model_folder(known.model), known.layer, known.options().part());
  REQUIRE(windows.has_value());
  const bool is_backbone =
      known.model == "maskformer_swin" || known.model == "swin_backbone";
  if (!is_backbone &&
      std::min(image.size(1), image.size(2)) <= windows->height()) {
    windows->shift(0);
  }
  return *windows;
}

} // namespace

TEST_CASE("Windows, masks and biases of images are those of their models") {
  const torch::NoGradGuard no_grad;
  int64_t count = 0;
  int64_t shifted = 0;
  for (const auto& model : models()) {
    for (const auto& known : known_attentions(model)) {
      const auto image = known.get("image");
      if (!image.defined()) {
        continue;
      }
      CAPTURE(model, known.layer);
      ++count;
      const auto B = image.size(0);
      const auto height = image.size(1);
      const auto width = image.size(2);
      const auto windows = windows_of(known, image);
      CHECK_THAT(
          F::to_image_windows(image, windows), IsEqualTo(known.get("input")));
      const auto mask = F::image_window_mask(B, height, width, windows);
      if (const auto expected = known.get("mask"); expected.defined()) {
        ++shifted;
        CHECK_THAT(mask, IsEqualTo(expected));
      } else {
        CHECK_FALSE(mask.any().item<bool>());
      }
      auto bias = window_bias_from_pretrained(
          model_folder(model), known.layer, known.options());
      CHECK_THAT(bias(), IsEqualTo(known.get("bias")));
      const auto output =
          output_of(known, ForwardOptions().bias(bias()).mask(mask));
      CHECK_THAT(
          F::from_image_windows(output, height, width, windows),
          IsCloseTo(known.get("merged"), {1e-5, 1e-5}));
    }
  }
  CHECK(count >= 20);
  CHECK(shifted >= 7);
}

TEST_CASE("Layers of stages have the sizes of their stages") {
  auto config = config_of("swin");
  const auto options_of = [&](int64_t layer) {
    return options_from_config(Changed("swin", config).path(), layer);
  };
  CHECK(options_of(1).d_in() == 8);
  CHECK(options_of(2).d_in() == 16);
  CHECK(options_of(2).num_heads() == 2);
  CHECK(options_of(4).d_in() == 32);
  THROWS_WITH(options_of(5), "expected a layer in [0, 5)");
  config["num_heads"] = {1, 2};
  CHECK(options_of(2).num_heads() == 2);
  THROWS_WITH(options_of(3), "expected a value for each layer");
  config["depths"] = 3;
  THROWS_WITH(options_of(0), "expected a list of integers as \"depths\"");
  config["depths"] = {1, -1};
  THROWS_WITH(options_of(0), "expected numbers of layers as \"depths\"");
  config["depths"] = {0, 3};
  CHECK(options_of(0).d_in() == 16);
  config["window_size"] = 0;
  THROWS_WITH(options_of(0), "expected window_size > 0");
}

TEST_CASE("Layers with windows of images are said to") {
  const auto layers = inspect_pretrained(model_folder("swin")).layers;
  REQUIRE(layers.size() == 5);
  CHECK_THAT(
      layers[1].description,
      ContainsText("a bias that the caller gives, within windows of 3 x 3 "
                   "tokens, shifted by 1, that the caller makes"));
  CHECK_THAT(layers[0].call, ContainsText("bias_by_caller(true)"));
  CHECK(windows_from_config(model_folder("sam3_vit"), 0)->height() == 3);
  CHECK_FALSE(windows_from_config(model_folder("sam3_vit"), 1).has_value());
  CHECK_FALSE(windows_from_config(model_folder("bert"), 0).has_value());
  THROWS_WITH(
      attention_from_pretrained(model_folder("swin"), 0),
      "with PretrainedOptions().bias_by_caller(true) the layer is loaded");
  THROWS_WITH(
      window_bias_from_pretrained(model_folder("bert"), 0),
      "model_type \"bert\" of \"" + model_folder("bert") +
          "/config.json\" has no bias by position within windows of an image");
  THROWS_WITH(
      rotary_from_pretrained(
          model_folder("sam3_vit"),
          4,
          5,
          PretrainedOptions().rotary_by_caller(true)),
      "expected a square image, whose sides the model scales to 3, but got 4 "
      "and 5");
}

TEST_CASE("The encoder of a model around another one has its layers") {
  const TemporaryFolder folder;
  const auto write = [&](const nlohmann::json& config) {
    std::ofstream(folder.file("config.json")) << config;
    return folder.path();
  };
  const auto vision = config_of("sam3_vision");
  const auto expected =
      options_from_config(model_folder("sam3_vit"), 2).num_heads();
  for (const std::string type : {"sam3_tracker", "sam3_tracker_video"}) {
    const auto path = write({{"model_type", type}, {"vision_config", vision}});
    CHECK(options_from_config(path, 2).num_heads() == expected);
  }
  const nlohmann::json sam3 = {
      {"model_type", "sam3"}, {"vision_config", vision}};
  CHECK(
      options_from_config(write(sam3), 2, PretrainedPart::kVision)
          .num_heads() == expected);
  const auto path =
      write({{"model_type", "sam3_video"}, {"detector_config", sam3}});
  CHECK(
      options_from_config(path, 2, PretrainedPart::kVision).num_heads() ==
      expected);
  CHECK(
      rotary_from_pretrained(path, 5, 5).cos.sizes() ==
      torch::IntArrayRef({25, 4}));
}

} // namespace pretrained_image_windows_test
