// Fields that a configuration lacks, and those that its class does not read.

#include <support/pretrained.h>

#include <torch_attention/weights/inspect_pretrained.h>

#include <optional>
#include <string>
#include <vector>

namespace pretrained_defaults_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;

/// The options of a layer of a model without these fields, and with a patch.
MultiHeadAttentionOptions options_without(
    const std::string& model,
    const std::vector<std::string>& fields,
    int64_t layer = 0,
    const json& patch = json::object()) {
  auto config = config_of(model);
  for (const auto& field : fields) {
    config.erase(field);
  }
  config.merge_patch(patch);
  const Changed changed(model, config);
  return options_from_config(changed.path(), layer);
}

} // namespace

TEST_CASE("Rotary embeddings that are absent are those of the class") {
  const std::vector<std::string> rotary{"rope_parameters"};
  for (const std::string model : {"gpt_oss", "openai_privacy_filter"}) {
    CAPTURE(model);
    const auto yarn = *options_without(model, rotary).rotary();
    CHECK(yarn.scaling() == RotaryScaling::kYarn);
    CHECK(yarn.factor() == 32);
    CHECK(yarn.theta() == 150000);
    CHECK(yarn.original_context_length() == 4096);
    CHECK_FALSE(yarn.truncate());
  }
  const auto cwm = *options_without("cwm", rotary).rotary();
  CHECK(cwm.scaling() == RotaryScaling::kLlama3);
  CHECK(cwm.factor() == 16);
  CHECK(cwm.theta() == 1e6);
  const auto higgs = *options_without("higgs_audio_v2", rotary).rotary();
  CHECK(higgs.scaling() == RotaryScaling::kLlama3);
  CHECK(higgs.factor() == 32);
  CHECK(higgs.slow_turns() == 0.125);
  CHECK(higgs.theta() == 500000);
  CHECK(options_without("mellum", rotary, 0).rotary()->theta() == 10000);
  CHECK(options_without("mellum", rotary, 1).rotary()->theta() == 500000);
  CHECK(options_without("apertus", rotary).rotary()->factor() == 8);
  // Only a theta of null leaves out the rotary embedding.
  CHECK(options_without("olmo_hybrid", rotary, 1).rotary()->theta() == 10000);
  auto config = config_of("olmo_hybrid");
  config["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", nullptr}};
  CHECK_FALSE(
      options_from_config(Changed("olmo_hybrid", config).path(), 1).rotary());
  // An older field wins over the default of the class.
  const auto older =
      *options_without(
           "gpt_oss",
           rotary,
           0,
           {{"rope_theta", 50.0},
            {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}})
           .rotary();
  CHECK(older.scaling() == RotaryScaling::kLinear);
  CHECK(older.theta() == 50);
}

TEST_CASE("Types of layers that are absent are those of the class") {
  const auto window =
      [](const std::string& model, int64_t layers, int64_t layer) {
        return options_without(
                   model,
                   {"layer_types", "per_layer_config"},
                   layer,
                   {{"num_hidden_layers", layers}})
            .window();
      };
  // The last layer sees all tokens, whatever its place.
  CHECK(window("gemma4_text", 8, 6).has_value());
  CHECK_FALSE(window("gemma4_text", 8, 5).has_value());
  CHECK_FALSE(window("gemma4_text", 8, 7).has_value());
  CHECK_FALSE(window("gemma4_unified_text", 3, 2).has_value());
  CHECK(window("embedding_gemma2_text", 8, 6).has_value());
  CHECK_FALSE(window("embedding_gemma2_text", 8, 7).has_value());
  // Also where layer_types says that it has a window.
  CHECK_FALSE(options_without(
                  "gemma4_text",
                  {"per_layer_config"},
                  1,
                  {{"layer_types", {"full_attention", "sliding_attention"}}})
                  .window());
  CHECK(window("lara_mini", 5, 1).has_value());
  CHECK_FALSE(window("lara_mini", 5, 3).has_value());
}

TEST_CASE("Fields that a class does not read change nothing") {
  // Gemma 3 reads the number under its newer name alone.
  const auto gemma = [](const json& patch, int64_t layer) {
    auto all = patch;
    all["num_hidden_layers"] = 6;
    return options_without("gemma3", {"layer_types"}, layer, all)
        .window()
        .has_value();
  };
  CHECK(gemma({{"_sliding_window_pattern", 2}}, 1));
  CHECK_FALSE(gemma({{"sliding_window_pattern", 2}}, 1));
  // The class ignores parameters for all layers: each type has its own.
  const auto flat = options_without(
      "gemma3",
      {},
      1,
      {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5.0}}}});
  CHECK(flat.rotary()->theta() != 5);
  const json scaling = {
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}}};
  CHECK(options_without("cohere2_moe", {}, 0, scaling).rotary()->factor() == 1);
  const auto japanese = *options_without(
                             "gpt_neox_japanese",
                             {"rope_parameters"},
                             0,
                             {{"rope_theta", 77.0},
                              {"partial_rotary_factor", 0.5},
                              {"rotary_emb_base", 99}})
                             .rotary();
  CHECK(japanese.theta() == 99);
  CHECK(japanese.dim().value_or(8) == 8);
}

TEST_CASE("A flag that is null is off, as in Python") {
  auto config = config_of("deepseek_v3");
  config["rope_interleave"] = nullptr;
  CHECK(
      latent_options_from_config(Changed("deepseek_v3", config).path(), 0)
          .rotary()
          .pairing() == RotaryPairing::kHalves);
  config = config_of("llama_yarn");
  config["rope_parameters"]["truncate"] = nullptr;
  CHECK_FALSE(options_from_config(Changed("llama_yarn", config).path(), 0)
                  .rotary()
                  ->truncate());
}

TEST_CASE("A theta of an older style goes before that of the class") {
  const auto older = options_without(
      "cohere2_moe", {"rope_parameters"}, 0, {{"rope_theta", 50.0}});
  CHECK(older.rotary()->theta() == 50);
  CHECK(
      options_without("cohere2_moe", {"rope_parameters", "rope_theta"})
          .rotary()
          ->theta() == 10000);
}

TEST_CASE("Attention to both sides has the window of its class") {
  const json both = {{"use_bidirectional_attention", "all"}};
  const auto gemma4 = options_without("gemma4_text", {}, 0, both);
  CHECK_FALSE(gemma4.causal());
  const auto window = config_of("gemma4_text")["sliding_window"].get<int64_t>();
  CHECK(gemma4.window() == window / 2 + 2);
  CHECK(gemma4.window_after() == window / 2 + 1);
  // Python makes neither of the following.
  auto causal = both;
  causal["is_causal"] = true;
  THROWS_WITH(
      options_without("gemma4_text", {}, 0, causal),
      "expected no is_causal = true");
  THROWS_WITH(
      options_without("gemma3_both_sides", {}, 0, {{"is_causal", false}}),
      "expected no is_causal = false");
}

TEST_CASE("Text of a model that sees images is causal") {
  auto config = config_of("gemma3_with_images");
  config["text_config"]["use_bidirectional_attention"] = true;
  THROWS_WITH(
      options_from_config(Changed("gemma3_with_images", config).path(), 0),
      "expected use_bidirectional_attention = false");
  // Some classes take the mask from the field of the whole model.
  config = config_of("mistral3");
  config["is_causal"] = false;
  THROWS_WITH(
      options_from_config(Changed("mistral3", config).path(), 0),
      "expected is_causal = true");
}

TEST_CASE(
    "An odd number of rotated elements is refused where none is rounded") {
  for (const std::string model : {"stablelm", "phi", "persimmon"}) {
    CAPTURE(model);
    auto config = config_of(model);
    const auto heads = config["num_attention_heads"].get<int64_t>();
    config["hidden_size"] = 4 * heads;
    config["rope_parameters"]["partial_rotary_factor"] = 0.25;
    THROWS_WITH(
        options_from_config(Changed(model, config).path(), 0),
        "expected an even number of rotated elements of each head");
  }
}

TEST_CASE("Two names of one field have to agree") {
  auto config = config_of("gpt2");
  config["num_attention_heads"] = config["n_head"];
  CHECK_NOTHROW(options_from_config(Changed("gpt2", config).path(), 0));
  config["num_attention_heads"] = 2;
  THROWS_WITH(
      options_from_config(Changed("gpt2", config).path(), 0),
      "expected one of \"n_head\" and \"num_attention_heads\"");
}

TEST_CASE("A head_dim that changes the angles of latent attention is refused") {
  auto config = config_of("deepseek_v3");
  config["head_dim"] = 2;
  THROWS_WITH(
      latent_options_from_config(Changed("deepseek_v3", config).path(), 0),
      "expected head_dim = qk_rope_head_dim = 4");
  config["head_dim"] = 4;
  CHECK_NOTHROW(
      latent_options_from_config(Changed("deepseek_v3", config).path(), 0));
}

TEST_CASE("Layers that need blocks or windows of images are said to") {
  const auto described = [](const std::string& model, size_t index) {
    return inspect_pretrained(model_folder(model)).layers.at(index).description;
  };
  constexpr auto* kSome =
      "tokens of an image see each other if the call gives visible_blocks";
  CHECK_THAT(described("gemma3_with_images", 0), ContainsText(kSome));
  CHECK_THAT(described("gemma4", 0), ContainsText(kSome));
  CHECK(described("gemma4", 1).find(kSome) == std::string::npos);
  for (const std::string model : {"paligemma", "paligemma_2", "git"}) {
    CHECK_THAT(
        described(model, 0), ContainsText("each call needs visible_blocks"));
  }
  CHECK_THAT(
      described("qwen2_5_vl_vision", 0),
      ContainsText("within windows whose cu_seqlens the caller gives"));
  CHECK(described("qwen2_5_vl_vision", 1).find("windows") == std::string::npos);
}

} // namespace pretrained_defaults_test
