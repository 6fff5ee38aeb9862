// Angles of the rotary embedding of images.

#include <support/close.h>
#include <support/known_attention.h>
#include <support/pretrained.h>

#include <string>

namespace pretrained_image_rotary_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE("Angles of images are those of their models") {
  int64_t count = 0;
  bool has_windows = false;
  for (const auto& model : models()) {
    for (const auto& known : known_attentions(model)) {
      const auto grid = known.get("grid");
      CHECK(grid.defined() == known.get("cos").defined());
      if (!grid.defined()) {
        continue;
      }
      CAPTURE(model, known.layer);
      ++count;
      const auto angles = rotary_from_pretrained(
          model_folder(model),
          grid[0].item<int64_t>(),
          grid[1].item<int64_t>(),
          known.options());
      CHECK_THAT(angles.cos, IsCloseTo(known.get("cos"), {1e-5, 1e-6}));
      CHECK_THAT(angles.sin, IsCloseTo(known.get("sin"), {1e-5, 1e-6}));
      if (const auto starts = known.get("cu_seqlens"); starts.defined()) {
        has_windows = true;
        CHECK_THAT(angles.cu_seqlens, IsEqualTo(starts));
      }
    }
  }
  CHECK(count >= 2 * 12);
  CHECK(has_windows);
}

TEST_CASE("Angles of images are refused where there are none") {
  const auto angles = [](const std::string& model, int64_t height) {
    return rotary_from_pretrained(model_folder(model), height, 6);
  };
  THROWS_WITH(
      angles("bert", 4),
      "model_type \"bert\" of \"" + model_folder("bert") +
          "/config.json\" does not rotate by places in two dimensions");
  THROWS_WITH(
      angles("qwen3_vl_vision", 5),
      "expected the image's height and width in patches, multiples of 2 of at "
      "most 1048576 patches, but got 5 and 6");
  THROWS_WITH(angles("pixtral", 0), "but got 0 and 6");
  auto config = config_of("mlcd_vision_model");
  config["model_type"] = "video_llama_3_vision";
  THROWS_WITH(
      rotary_from_pretrained(Changed("mlcd_vision_model", config).path(), 4, 6),
      "in a way that its configuration does not tell");
  config = config_of("pixtral");
  config["rope_parameters"]["rope_type"] = "yarn";
  THROWS_WITH(
      rotary_from_pretrained(Changed("pixtral", config).path(), 4, 6),
      "expected a rotary embedding of type axial in");
  config = config_of("pixtral");
  config["rope_parameters"]["rope_theta"] = -1.0;
  THROWS_WITH(
      rotary_from_pretrained(Changed("pixtral", config).path(), 4, 6),
      "expected rope_theta > 0 in");
  config = config_of("dinov3_vit");
  config["num_register_tokens"] = 1'000'000'000;
  THROWS_WITH(
      rotary_from_pretrained(Changed("dinov3_vit", config).path(), 4, 6),
      "expected num_register_tokens from 0 to 4096 in");
}

TEST_CASE("Angles of images have the parameters of older configurations") {
  for (const auto* model : {"pixtral", "qwen2_5_vl_vision", "gemma4_vision"}) {
    CAPTURE(model);
    const auto angles = [&](const auto& change) {
      auto config = config_of(model);
      config.erase("rope_parameters");
      config.erase("rope_theta");
      change(config);
      return rotary_from_pretrained(Changed(model, config).path(), 4, 6).cos;
    };
    const auto newer = angles(
        [](auto& config) { config["rope_parameters"]["rope_theta"] = 77.0; });
    const auto older = angles([](auto& config) {
      config["rope_scaling"]["rope_theta"] = 77.0;
      config["rope_theta"] = 7.5;
    });
    CHECK_THAT(older, IsEqualTo(newer));
    CHECK_FALSE(newer.equal(angles([](auto& /*config*/) {})));
    THROWS_WITH(
        angles([](auto& config) {
          config["rope_parameters"]["rope_theta"] = 77.0;
          config["rope_scaling"]["type"] = "default";
        }),
        "expected rope_parameters or rope_scaling in");
    THROWS_WITH(
        angles([](auto& config) {
          config["rope_scaling"]["type"] = "linear";
          config["rope_scaling"]["factor"] = 2.0;
        }),
        "expected a rotary embedding of type axial in");
  }
}

TEST_CASE("Images without patch_size have that of their class") {
  auto config = config_of("qwen2_5_vl_vision");
  config["window_size"] = 56;
  config["patch_size"] = 14;
  const Changed given("qwen2_5_vl_vision", config);
  config.erase("patch_size");
  const Changed without("qwen2_5_vl_vision", config);
  const auto expected = rotary_from_pretrained(given.path(), 8, 12).cos;
  CHECK(torch::equal(
      rotary_from_pretrained(without.path(), 8, 12).cos, expected));
  // Windows of two squares give another order than one window of all.
  config["window_size"] = 560;
  CHECK_FALSE(torch::equal(
      rotary_from_pretrained(Changed("qwen2_5_vl_vision", config).path(), 8, 12)
          .cos,
      expected));
}

TEST_CASE("Angles of images have the dtype and the theta that are asked for") {
  const auto options = PretrainedOptions().dtype(torch::kDouble);
  const auto folder = model_folder("pixtral");
  const auto found = rotary_from_pretrained(folder, 3, 5, options).cos;
  CHECK(found.scalar_type() == torch::kDouble);
  CHECK(found.sizes() == torch::IntArrayRef({15, 4}));
  auto config = config_of("pixtral");
  config["rope_theta"] = 16.0;
  config.erase("rope_parameters");
  const Changed changed("pixtral", config);
  const auto cos = rotary_from_pretrained(changed.path(), 3, 5, options).cos;
  // Row 2 and column 1: theta to the power of 0 and -1/2, -1/4 and -3/4.
  CHECK_THAT(
      cos[11],
      IsCloseTo(torch::tensor({2.0, 0.5, 0.5, 0.125}, torch::kDouble).cos()));
}

} // namespace pretrained_image_rotary_test
