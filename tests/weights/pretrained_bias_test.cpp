// Biases of scores that pretrained models have.

#include <support/close.h>
#include <support/known_attention.h>
#include <support/pretrained.h>

#include <cmath>
#include <string>
#include <utility>

namespace pretrained_bias_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE("BEiT's bias is that of a window, and three numbers of its class") {
  const torch::NoGradGuard no_grad;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    torch::Tensor table;
    for (const auto& item :
         read_weights(model_folder("beit_biased") + "/model.safetensors")) {
      if (item.key().find(c10::str("layer.", layer, ".")) !=
              std::string::npos &&
          item.key().find("bias_table") != std::string::npos) {
        table = item.value();
      }
    }
    REQUIRE(table.defined());
    WindowBias window(/*num_heads=*/4, /*height=*/2, /*width=*/2);
    window->relative_position_bias_table.copy_(table.slice(0, 0, -3));
    const auto column = [&](int64_t row, int64_t T, int64_t S) {
      return table[row].view({1, 4, 1, 1}).expand({1, 4, T, S});
    };
    const auto of_class = torch::cat({column(-1, 1, 1), column(-3, 1, 4)}, -1);
    const auto of_patches = torch::cat({column(-2, 4, 1), window()}, -1);
    CHECK_THAT(
        torch::cat({of_class, of_patches}, -2),
        IsCloseTo(expected("beit_biased", layer, "bias")));
  }
}

TEST_CASE("Falcon's bias is ALiBi, rounded and scaled") {
  const auto bias = expected("falcon_alibi", 0, "bias");
  const auto slopes = functional::alibi_slopes(4).to(torch::kBFloat16);
  const auto T = bias.size(-1);
  const auto own =
      (slopes.view({4, 1, 1}) * torch::arange(T)).to(torch::kFloat) /
      std::sqrt(6.0);
  const auto later = functional::causal_mask(T, T);
  CHECK_THAT(
      bias.masked_fill(later, 0),
      IsCloseTo(own.masked_fill(later, 0).expand_as(bias)));
}

TEST_CASE("The biases of T5 and MPNet come from their folders") {
  const auto check = [](const std::string& model,
                        const std::string& part,
                        int64_t layer,
                        RelativeBias bias) {
    CAPTURE(model, part, layer);
    const KnownAttention known{model, part, layer};
    CHECK(bias->options.bidirectional() == (part == "encoder."));
    const auto expected = known.get("bias");
    const auto T = expected.size(-1);
    const auto is_seen = expected > -1e30;
    CHECK_THAT(
        bias(T, T).expand_as(expected).index({is_seen}),
        IsEqualTo(expected.index({is_seen})));
  };
  for (const std::string part : {"encoder.", "decoder."}) {
    for (const int64_t layer : {0, 1}) {
      for (const std::string model : {"pop2piano", "t5", "umt5"}) {
        check(
            model,
            part,
            layer,
            relative_bias_from_pretrained(
                model_folder(model),
                layer,
                KnownAttention{model, part, layer}.options()));
      }
      check(
          "t5",
          part,
          layer,
          relative_bias_from_pretrained(
              model_folder("t5"), KnownAttention{"t5", part, layer}.options()));
    }
  }
  for (const auto& [model, part] :
       {std::pair{"pix2struct", "text."}, std::pair{"udop", "decoder."}}) {
    const KnownAttention known{model, part, 1};
    check(
        model,
        part,
        1,
        relative_bias_from_pretrained(model_folder(model), known.options()));
  }
  const KnownAttention known{"mpnet", "", 0};
  auto bias =
      relative_bias_from_pretrained(model_folder("mpnet"), PretrainedOptions());
  const auto expected = known.get("bias");
  CHECK_THAT(
      bias(expected.size(-1), expected.size(-1)).expand_as(expected),
      IsEqualTo(expected));
}

TEST_CASE("A model without a bias or latent attention is refused by name") {
  THROWS_WITH(
      relative_bias_from_pretrained(model_folder("t5"), PretrainedOptions()),
      "expected PretrainedPart::kEncoder or kDecoder as the part of");
  THROWS_WITH(
      relative_bias_from_pretrained(model_folder("llama"), PretrainedOptions()),
      "expected a model with a bias by the distance of tokens, one of mpnet, "
      "mt5, pix2struct, pix2struct_text_model, pop2piano, switch_transformers, "
      "t5, udop and umt5, but got model_type \"llama\"");
  THROWS_WITH(
      relative_bias_from_pretrained(
          model_folder("udop"),
          PretrainedOptions().part(PretrainedPart::kEncoder)),
      "expected PretrainedPart::kDecoder, whose bias is by the distance of "
      "tokens alone, as the part of");
  const auto of_encoder = PretrainedOptions().part(PretrainedPart::kEncoder);
  THROWS_WITH(
      relative_bias_from_pretrained(model_folder("umt5"), of_encoder),
      "expected a layer, since each of model_type \"umt5\" in");
  for (const std::string model : {"t5", "umt5"}) {
    THROWS_WITH(
        relative_bias_from_pretrained(model_folder(model), 2, of_encoder),
        "expected a layer in [0, 2)");
  }
  THROWS_WITH(
      latent_attention_from_pretrained(model_folder("llama"), 0),
      "expected a model with latent attention, one of axk1, deepseek_v2, "
      "deepseek_v3, deepseek_v32, glm4_moe_lite, glm_moe_dsa, kimi_k2, "
      "kimi_k25, kimi_linear, longcat_flash, minicpm3, mistral4, sarvam_mla, "
      "youtu, but got model_type \"llama\"");
  THROWS_WITH(
      attention_from_pretrained(model_folder("deepseek_v3"), 0),
      "is latent: latent_attention_from_pretrained loads it");
}

} // namespace pretrained_bias_test
