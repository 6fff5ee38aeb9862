// Models whose values are made of other tokens than queries and keys.

#include <support/close.h>
#include <support/known_attention.h>
#include <support/pretrained.h>

#include <torch_attention/weights/inspect_pretrained.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace pretrained_value_input_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;

PretrainedOptions part_of(PretrainedPart part) {
  return PretrainedOptions().part(part);
}

/// The options that a changed configuration has.
MultiHeadAttentionOptions options_of(
    const std::string& model,
    const json& patch,
    PretrainedPart part,
    int64_t layer = 0) {
  auto config = config_of(model);
  config.merge_patch(patch);
  const Changed changed(model, config);
  return options_from_config(changed.path(), layer, part);
}

void check_refused_cross(const std::string& model) {
  CAPTURE(model);
  const auto config = config_of(model);
  const TemporaryFolder folder;
  std::ofstream(folder.file("config.json")) << config;
  THROWS_WITH(
      cross_options_from_config(folder.path(), 0),
      "is not computed: it samples few points of the image for each query");
}

} // namespace

TEST_CASE("Layers of DETR refuse calls without the input of values") {
  auto encoder = attention_from_pretrained(
      model_folder("detr"), 0, part_of(PretrainedPart::kEncoder));
  CHECK(encoder->options.needs_value_input());
  const auto x = torch::rand({2, 6, 24});
  THROWS_WITH(encoder(x), "expected value_input (needs_value_input)");
  auto cross = cross_attention_from_pretrained(model_folder("detr"), 1);
  CHECK(cross->options.needs_value_input());
  THROWS_WITH(cross(x, x), "expected value_input (needs_value_input)");
  THROWS_WITH(cross->make_cache(x), "expected value_input (needs_value_input)");
}

TEST_CASE("Parts that are not computed are refused by name") {
  for (const std::string model : {"conditional_detr", "dab_detr"}) {
    CAPTURE(model);
    THROWS_WITH(
        options_of(model, json::object(), PretrainedPart::kDecoder),
        "the decoder's attention of");
    THROWS_WITH(
        options_of(model, json::object(), PretrainedPart::kDecoder),
        "it joins projections of content and of positions");
    CHECK_FALSE(
        options_of(model, json::object(), PretrainedPart::kEncoder).causal());
  }
  for (const std::string model : {"deformable_detr", "mask2former"}) {
    THROWS_WITH(
        options_of(model, json::object(), PretrainedPart::kEncoder),
        "the encoder's attention of");
  }
  for (const auto* model :
       {"rt_detr",
        "rt_detr_v2",
        "d_fine",
        "deimv2",
        "deformable_detr",
        "lw_detr",
        "rf_detr"}) {
    check_refused_cross(model);
  }
  THROWS_WITH(
      options_of(
          "rt_detr",
          {{"encode_proj_layers", {1, 2}}},
          PretrainedPart::kEncoder),
      "expected one element of \"encode_proj_layers\"");
  THROWS_WITH(
      options_of(
          "deimv2", {{"encoder_type", "lite"}}, PretrainedPart::kEncoder),
      "an encoder without attention");
  THROWS_WITH(
      options_of("mask2former", json::object(), PretrainedPart::kDecoder, 2),
      "layer");
}

TEST_CASE("Decoders of masks are parts of models of images") {
  for (const std::string model : {"sam", "sam_hq", "sam2"}) {
    CAPTURE(model);
    const auto of_layer = [&](int64_t layer) {
      return options_of(model, json::object(), PretrainedPart::kDecoder, layer);
    };
    CHECK_FALSE(of_layer(0).needs_value_input());
    CHECK(of_layer(1).needs_value_input());
  }
  THROWS_WITH(
      options_of("sam2", json::object(), PretrainedPart::kEncoder),
      "is not computed");
  const auto head_dim_of = [](const std::string& model) {
    return cross_options_from_config(model_folder(model), 0).head_dim();
  };
  // SAM has a rate of its own in layers: 16 / 2 / 2 and 16 / 4 / 2.
  CHECK(head_dim_of("sam") == 4);
  CHECK(head_dim_of("sam2") == 2);
  auto config = config_of("sam2");
  config["mask_decoder_config"]["attention_downsample_rate"] = 5;
  const Changed changed("sam2", config);
  THROWS_WITH(
      cross_options_from_config(changed.path(), 0),
      "to divide the size of cross-attention");
}

TEST_CASE("inspect_pretrained tells which layers need the input of values") {
  const auto detr = inspect_pretrained(model_folder("detr"));
  REQUIRE(detr.layers.size() == 3);
  for (const auto& layers : detr.layers) {
    CHECK(layers.needs_value_input);
    CHECK_THAT(layers.description, ContainsText("each call needs value_input"));
    CHECK_FALSE(layers.call.empty());
  }
  CHECK_THAT(
      detr.layers.front().options, ContainsText(".needs_value_input(true)"));
  const auto rt = inspect_pretrained(model_folder("rt_detr"));
  REQUIRE(rt.layers.size() == 3);
  CHECK(rt.layers.back().is_cross);
  CHECK(rt.layers.back().call.empty());
  CHECK_THAT(
      rt.layers.back().description, ContainsText("it samples few points"));
  const auto sam = inspect_pretrained(model_folder("sam2"));
  // The encoder is refused; layer 0 has no positions.
  REQUIRE(sam.layers.size() == 4);
  CHECK(sam.layers[0].numbers.empty());
  CHECK_FALSE(sam.layers[1].needs_value_input);
  CHECK(sam.layers[2].needs_value_input);
  CHECK(sam.layers[3].is_cross);
}

} // namespace pretrained_value_input_test
