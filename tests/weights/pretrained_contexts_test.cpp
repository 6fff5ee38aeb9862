// Models whose contexts, biases or masks the caller makes, and their layers in
// stages.

#include <support/close.h>
#include <support/known_attention.h>
#include <support/pretrained.h>

#include <torch_attention/weights/inspect_pretrained.h>

#include <string>

namespace pretrained_contexts_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;

/// The folder of a model with a changed configuration.
Changed changed(const std::string& model, const json& patch) {
  auto config = config_of(model);
  config.merge_patch(patch);
  return Changed(model, config);
}

} // namespace

TEST_CASE("Models with a context of the caller have no self-attention") {
  for (const std::string model :
       {"segformer",
        "glpn",
        "pvt",
        "pvt_v2",
        "idefics2_perceiver",
        "sam3_mask_decoder",
        "molmo2_adapter"}) {
    CAPTURE(model);
    THROWS_WITH(
        attention_from_pretrained(model_folder(model), 0),
        "attends to a context that each call gives: "
        "cross_attention_from_pretrained loads it");
    for (const auto& layers : inspect_pretrained(model_folder(model)).layers) {
      CHECK(layers.is_cross);
      CHECK_FALSE(layers.call.empty());
    }
  }
  THROWS_WITH(
      cross_attention_from_pretrained(model_folder("sam3_mask_decoder"), 1),
      "expected a layer in [0, 1)");
  THROWS_WITH(
      cross_attention_from_pretrained(model_folder("perceiver"), 1),
      "expected layer 0");
  THROWS_WITH(
      attention_from_pretrained(model_folder("superglue"), 1),
      "is of the type \"cross\": cross_attention_from_pretrained loads it");
  THROWS_WITH(
      cross_attention_from_pretrained(model_folder("superglue"), 0),
      "is of the type \"self\": attention_from_pretrained loads it");
}

TEST_CASE("Layers in stages have the sizes of their stage") {
  const auto folder = model_folder("segformer");
  const auto first = cross_options_from_config(folder, 0);
  CHECK(first.d_in() == 16);
  CHECK(first.num_heads() == 2);
  for (const int64_t layer : {1, 2}) {
    const auto second = cross_options_from_config(folder, layer);
    CHECK(second.d_in() == 24);
    CHECK(second.num_heads() == 3);
  }
  THROWS_WITH(
      cross_options_from_config(folder, 3), "expected a layer in [0, 3)");
  THROWS_WITH(
      cross_options_from_config(
          changed("segformer", {{"num_encoder_blocks", 3}}).path(), 0),
      "expected depths for each of num_encoder_blocks = 3 stages");
  THROWS_WITH(
      cross_options_from_config(
          changed("segformer", {{"depths", nullptr}}).path(), 0),
      "expected a list of integers as \"depths\"");
  THROWS_WITH(
      cross_options_from_config(
          changed("segformer", {{"depths", {-1, 2}}}).path(), 0),
      "expected numbers of layers as \"depths\"");
  THROWS_WITH(
      cross_options_from_config(
          changed("segformer", {{"hidden_sizes", {16}}}).path(), 1),
      "expected a value for each layer as \"hidden_sizes\"");
  // A list for each layer is no list for each stage.
  THROWS_WITH(
      options_from_config(
          changed("llama", {{"num_attention_heads", {4, 2}}}).path(), 0),
      "expected an integer as \"num_attention_heads\"");
  CHECK_NOTHROW(options_from_config(model_folder("albert"), 0));
  const auto image = model_folder("mobilevit");
  CHECK(options_from_config(image, 1).d_in() == 8);
  CHECK(options_from_config(image, 2).d_in() == 12);
  CHECK(options_from_config(image, 8).d_in() == 16);
  THROWS_WITH(options_from_config(image, 9), "expected a layer in [0, 9)");
}

TEST_CASE("A bias of the caller has to be announced") {
  const auto refuses = [](const std::string& model,
                          const std::string& what,
                          PretrainedPart part = PretrainedPart::kAuto) {
    CAPTURE(model);
    THROWS_WITH(
        attention_from_pretrained(
            model_folder(model), 0, PretrainedOptions().part(part)),
        "adds " + what +
            " to the scores, which is not computed: with "
            "PretrainedOptions().bias_by_caller(true)");
  };
  refuses("layoutlmv3", "a bias by places on the page");
  refuses("bros", "products of queries and places on the page");
  refuses("lilt", "the scores of a second stream");
  refuses("wavlm", "a gated bias by the distance of tokens");
  refuses("cpmant", "a bias by segments and distances with a mask");
  refuses(
      "phi4_multimodal_audio", "a mask and a bias by the distance of tokens");
  refuses("pix2struct", "a bias by the distance of tokens");
  refuses("udop", "a bias by the distance of tokens", PretrainedPart::kDecoder);
  refuses(
      "udop",
      "a bias by distances and places on the page",
      PretrainedPart::kEncoder);
  // Without both biases of its configuration there is none.
  const auto plain = changed(
      "layoutlmv3",
      {{"has_relative_attention_bias", false},
       {"has_spatial_attention_bias", false}});
  CHECK_FALSE(inspect_pretrained(plain.path()).layers.front().needs_bias);
}

TEST_CASE("Patches that see each other have to be announced") {
  const torch::NoGradGuard no_grad;
  auto attention =
      attention_from_pretrained(model_folder("deepseek_ocr2_vision"), 0);
  THROWS_WITH(attention(torch::rand({1, 4, 24})), "visible_blocks");
}

TEST_CASE("Layers of Zamba share the weights of the first with attention") {
  const auto folder = model_folder("zamba");
  THROWS_WITH(attention_from_pretrained(folder, 0), "layer 0 of");
  const auto first = attention_from_pretrained(folder, 1);
  const auto second = attention_from_pretrained(folder, 2);
  CHECK(first->options.d_in() == 2 * first->options.d_out());
  CHECK(first->W_query->weight.equal(second->W_query->weight));
}

} // namespace pretrained_contexts_test
