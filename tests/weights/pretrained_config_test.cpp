// Configurations of Hugging Face's models, and their meaning.

#include <support/close.h>
#include <support/pretrained.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

namespace pretrained_config_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;

} // namespace

TEST_CASE("Options come from a configuration alone") {
  const auto options =
      options_from_config(model_folder("gemma3") + "/config.json", 0);
  CHECK(options.d_in() == 24);
  CHECK(options.num_heads() == 4);
  CHECK(options.num_kv_heads() == 2);
  CHECK(options.head_dim() == 8);
  CHECK(options.window() == 3);
  CHECK(options.scale() == 1 / std::sqrt(12.0));
  CHECK(options.rotary()->theta() == 10000);
  CHECK(options.qk_norm()->unit_offset());
  CHECK_FALSE(options.out_bias());
  const auto full = options_from_config(model_folder("gemma3"), 1);
  CHECK_FALSE(full.window());
  CHECK(full.rotary()->theta() == 1000000);
}

TEST_CASE("More layers than any model has cost nothing") {
  for (const std::string model : {"llama", "gemma3"}) {
    CAPTURE(model);
    auto config = config_of(model);
    config.erase("layer_types");
    config["num_hidden_layers"] = 1'000'000'000;
    const Changed changed(model, config);
    CHECK(options_from_config(changed.path(), 999'999'999).d_in() == 24);
    THROWS_WITH(
        inspect_pretrained(changed.path()),
        "expected no more than 2000 layers in");
    THROWS_WITH(
        attention_from_pretrained(changed.path(), 999'999'999), "999999999");
  }
}

TEST_CASE("Configurations of before transformers 5 mean the same") {
  auto config = config_of("llama_3_1");
  auto parameters = config.at("rope_parameters");
  config.erase("rope_parameters");
  config["rope_theta"] = parameters.at("rope_theta");
  parameters.erase("rope_theta");
  config["rope_scaling"] = parameters;
  const Changed llama("llama_3_1", config);
  const torch::NoGradGuard no_grad;
  CHECK_THAT(
      attention_from_pretrained(
          llama.path(), 0)(expected("llama_3_1", 0, "input")),
      IsCloseTo(expected("llama_3_1", 0, "output"), {1e-5, 1e-5}));

  config = config_of("gemma3");
  config.erase("rope_parameters");
  config.erase("layer_types");
  config["rope_theta"] = 1000000.0;
  config["rope_local_base_freq"] = 10000.0;
  config["sliding_window_pattern"] = 2;
  config["rope_scaling"] = nullptr;
  const Changed gemma("gemma3", config);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    CHECK_THAT(
        attention_from_pretrained(
            gemma.path(), layer)(expected("gemma3", layer, "input")),
        IsCloseTo(expected("gemma3", layer, "output"), {1e-5, 1e-5}));
  }
}

TEST_CASE("Fields that are absent or old mean what transformers does") {
  const auto options = [](const char* model, const json& patch, int64_t layer) {
    auto config = config_of(model);
    config.erase("layer_types");
    config.erase("rope_parameters");
    config[config.contains("n_layer") ? "n_layer" : "num_hidden_layers"] = 8;
    config.merge_patch(patch);
    const Changed changed(model, config);
    return options_from_config(changed.path(), layer);
  };
  const json yarn = {
      {"rope_theta", 500000.0},
      {"rope_scaling",
       {{"rope_type", "yarn"},
        {"factor", 8.0},
        {"original_max_position_embeddings", 16}}}};
  // Only layers that see all tokens are scaled.
  CHECK(options("olmo3", yarn, 0).rotary()->factor() == 1);
  CHECK(options("olmo3", yarn, 3).rotary()->factor() == 8);
  const json linear = {
      {"rope_theta", 1000000.0},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}};
  const auto local = options("gemma3", linear, 0);
  CHECK(local.rotary()->theta() == 10000);
  CHECK(local.rotary()->factor() == 1);
  CHECK(options("gemma3", linear, 5).rotary()->factor() == 8);
  CHECK(options("mixtral", json::object(), 0).rotary()->theta() == 1e6);
  CHECK(options("llama", json::object(), 0).rotary()->theta() == 10000);

  const json slides = {{"use_sliding_window", true}, {"sliding_window", 3}};
  CHECK(options("qwen3_moe", slides, 0).window() == 3);
  CHECK(options("qwen2_moe", slides, 0).window() == 3);
  CHECK_FALSE(options("qwen2_moe", slides, 1).window());
  CHECK_FALSE(options("qwen3", slides, 1).window());
  const json pattern = {{"sliding_window_pattern", "LG"}};
  CHECK(options("exaone4", pattern, 0).window() == 3);
  CHECK_FALSE(options("exaone4", pattern, 1).window());

  auto gemma = config_of("gemma2");
  gemma.erase("attn_logit_softcapping");
  CHECK(
      options_from_config(Changed("gemma2", gemma).path(), 0).softcap() == 50);
  gemma["attn_logit_softcapping"] = nullptr;
  CHECK_FALSE(
      options_from_config(Changed("gemma2", gemma).path(), 0).softcap());
  // Fields of released models without effect on attention.
  CHECK_NOTHROW(options(
      "bert",
      {{"pooler_num_attention_heads", 12}, {"chunk_size_feed_forward", 0}},
      0));
  CHECK_NOTHROW(options("gptj", {{"rotary", true}}, 0));
}

TEST_CASE("EmbeddingGemma 2 sees both sides") {
  auto text = config_of("embedding_gemma2_text");
  text.erase("per_layer_config");
  const TemporaryFolder folder;
  std::ofstream(folder.file("config.json"))
      << json{{"model_type", "embedding_gemma2"}, {"text_config", text}};
  const auto near = options_from_config(folder.path(), 0);
  CHECK_FALSE(near.causal());
  CHECK(near.window() == 3);
  CHECK(near.window_after() == 2);
  CHECK(near.head_dim() == 8);
  // The class has these sizes for all layers that have none of their own.
  const auto all = options_from_config(folder.path(), 1);
  CHECK_FALSE(all.window().has_value());
  CHECK(all.head_dim() == 512);
  CHECK(all.num_kv_heads() == 1);
}

TEST_CASE("DPT's own sizes are not those of its backbone") {
  auto config = config_of("dpt");
  config["is_hybrid"] = false;
  config["backbone_config"] = {{"model_type", "dinov2"}, {"hidden_size", 24}};
  const Changed changed("dpt", config);
  THROWS_WITH(
      options_from_config(changed.path(), 0), "is that of its backbone_config");
  config["is_hybrid"] = true;
  CHECK(options_from_config(Changed("dpt", config).path(), 0).num_heads() > 0);
}

TEST_CASE("Talkers of Qwen's Omni models have rules of their own") {
  auto config = config_of("qwen3");
  config["model_type"] = "qwen3_omni_moe_talker_code_predictor";
  for (const auto* field : {"layer_types", "use_sliding_window"}) {
    config.erase(field);
  }
  config["sliding_window"] = 4;
  config["max_window_layers"] = 1;
  const Changed predictor("qwen3", config);
  CHECK_FALSE(options_from_config(predictor.path(), 0).window());
  CHECK(options_from_config(predictor.path(), 1).window() == 4);
  config = config_of("qwen2");
  config["model_type"] = "qwen2_5_omni_talker";
  config["position_id_per_seconds"] = 25;
  config["seconds_per_chunk"] = 2;
  CHECK(
      options_from_config(Changed("qwen2", config).path(), 0).d_in() ==
      options_from_config(model_folder("qwen2"), 0).d_in());
}

TEST_CASE("Kimi K2 is DeepSeek-V3") {
  const auto options_of = [](const json& config) {
    const TemporaryFolder folder;
    std::ofstream(folder.file("config.json")) << config;
    return latent_options_from_config(folder.path(), 1);
  };
  auto config = config_of("deepseek_v3");
  const auto deepseek = options_of(config);
  const auto check = [&](const json& other) {
    const auto kimi = options_of(other);
    CHECK(kimi.query_rank() == deepseek.query_rank());
    CHECK(kimi.rope_dim() == deepseek.rope_dim());
    CHECK(kimi.rotary()->pairing() == deepseek.rotary()->pairing());
  };
  check({{"model_type", "kimi_k25"}, {"text_config", config}});
  config["model_type"] = "kimi_k2";
  check(config);
}

TEST_CASE("Fields of one layer take the place of those of all") {
  auto config = config_of("step3p5");
  config["per_layer_config"] = {{"1", {{"head_dim", 10}}}};
  const Changed changed("step3p5", config);
  CHECK(options_from_config(changed.path(), 1).head_dim() == 10);
  CHECK(options_from_config(changed.path(), 0).head_dim() != 10);
  config["per_layer_config"] = {{"01", {{"head_dim", 10}}}};
  THROWS_WITH(
      options_from_config(Changed("step3p5", config).path(), 1),
      "with numbers of layers, but got \"01\"");
  config["per_layer_config"] = {{"1", {{"head_dim", 10}}}};
  config["allow_global_per_layer_attribute_access"] = true;
  THROWS_WITH(
      options_from_config(Changed("step3p5", config).path(), 1),
      "allow_global_per_layer_attribute_access = false");
  // Most classes read them in part, if at all.
  config = config_of("llama");
  config["per_layer_config"] = json::object();
  CHECK_NOTHROW(options_from_config(Changed("llama", config).path(), 1));
  config["per_layer_config"] = {{"1", {{"head_dim", 10}}}};
  THROWS_WITH(
      options_from_config(Changed("llama", config).path(), 0),
      "to have no fields, which models of this type do not read");
  // Released files of Gemma 4 have sizes of full layers in fields of their own.
  auto gemma = config_of("gemma4_keys");
  gemma.erase("per_layer_config");
  gemma["global_head_dim"] = 16;
  gemma["num_global_key_value_heads"] = 1;
  const Changed released("gemma4_keys", gemma);
  CHECK_NOTHROW(attention_from_pretrained(released.path(), 1));
  CHECK(options_from_config(released.path(), 1).num_kv_heads() == 1);
  gemma["num_kv_shared_layers"] = 1;
  const Changed sharing("gemma4_keys", gemma);
  CHECK_NOTHROW(options_from_config(sharing.path(), 0));
  THROWS_WITH(
      options_from_config(sharing.path(), 1),
      "takes the keys and values of another layer");
}

TEST_CASE("Odd and proportional rotary embeddings have the same pairs") {
  const auto rotary = [](const char* model, const json& parameters) {
    auto config = config_of(model);
    config["rope_parameters"] = parameters;
    const Changed changed(model, config);
    return *options_from_config(changed.path(), 0).rotary();
  };
  // 0.4 of 8 elements are 3; transformers rotates 4.
  const auto glm = rotary(
      "glm",
      {{"rope_theta", 1e3},
       {"rope_type", "default"},
       {"partial_rotary_factor", 0.4}});
  CHECK(glm.dim() == 4);
  CHECK(glm.theta() == Approx(1e4));
  const auto proportional = rotary(
      "llama",
      {{"rope_theta", 1e4},
       {"rope_type", "proportional"},
       {"partial_rotary_factor", 0.5},
       {"factor", 2}});
  CHECK(proportional.short_factors() == std::vector<double>{2, 1e30, 1e30});
  // null beside the parameters means all to transformers, the share to others.
  auto config = config_of("glm");
  config["rope_parameters"] = {
      {"rope_theta", 50.0}, {"rope_type", "proportional"}};
  config["partial_rotary_factor"] = nullptr;
  THROWS_WITH(
      options_from_config(Changed("glm", config).path(), 0),
      "expected a number as partial_rotary_factor of");
}

} // namespace pretrained_config_test
