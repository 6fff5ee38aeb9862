// Rotary embeddings and other positions, as the classes read their fields.

#include <support/pretrained.h>

#include <string>
#include <vector>

namespace pretrained_rotary_test {

using namespace torch_attention;
using namespace torch_attention::testing;

using nlohmann::json;

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

TEST_CASE("The default share of heads may be that of one rotary type") {
  const auto config = config_of("mimo_v2_flash");
  const auto head_dim = config["head_dim"].get<double>();
  const auto dim_with = [&](const json& parameters) {
    const auto each =
        json{{"full_attention", parameters}, {"sliding_attention", parameters}};
    return options_without("mimo_v2_flash", {}, 0, {{"rope_parameters", each}})
        .rotary()
        ->dim()
        .value_or(config["head_dim"].get<int64_t>());
  };
  json parameters{
      {"rope_type", "default"},
      {"rope_theta", 50.0},
      {"partial_rotary_factor", nullptr}};
  CHECK(dim_with(parameters) == static_cast<int64_t>(head_dim * 0.334));
  parameters["rope_type"] = "linear";
  parameters["factor"] = 2.0;
  CHECK(dim_with(parameters) == static_cast<int64_t>(head_dim));
}

TEST_CASE("A share beside the parameters of each type is refused") {
  for (const std::string model : {"laguna", "mimo_v2_flash"}) {
    CAPTURE(model);
    auto config = config_of(model);
    config["partial_rotary_factor"] = 0.5;
    for (auto& parameters : config["rope_parameters"]) {
      parameters["partial_rotary_factor"] = 0.25;
    }
    const auto load = [&] {
      return options_from_config(Changed(model, config).path(), 0);
    };
    CHECK_NOTHROW(load());
    for (auto& parameters : config["rope_parameters"]) {
      parameters.erase("partial_rotary_factor");
    }
    THROWS_WITH(
        load(), "expected partial_rotary_factor in the rope_parameters");
  }
  // LFM 3 reads it for one kind of parameters alone.
  THROWS_WITH(
      options_without(
          "lfm3",
          {},
          1,
          {{"rope_parameters",
            {{"full_attention",
              {{"rope_type", "default"},
               {"rope_theta", 5.0},
               {"partial_rotary_factor", 0.5}}}}}}),
      "expected no partial_rotary_factor");
}

TEST_CASE("Each type of layer needs rotary parameters in Step 3.5") {
  auto config = config_of("step3p5");
  config["layer_types"] = {"sliding_attention", "full_attention"};
  auto& parameters = config["rope_parameters"];
  parameters["full_attention"] = {
      {"rope_type", "default"}, {"rope_theta", 5.0}};
  parameters["sliding_attention"] = nullptr;
  THROWS_WITH(
      options_from_config(Changed("step3p5", config).path(), 1),
      "expected rope_parameters of \"sliding_attention\"");
}

TEST_CASE("A temperature grows from the length that YaRN extends") {
  auto config = config_of("ministral3");
  config["rope_parameters"]["rope_type"] = "yarn";
  config["rope_parameters"]["original_max_position_embeddings"] = 4;
  config["original_max_position_embeddings"] = 16;
  const auto options =
      options_from_config(Changed("ministral3", config).path(), 0);
  CHECK(options.temperature()->floor_scale() == 16);
  CHECK(options.rotary()->original_context_length() == 16);
}

TEST_CASE("Empty rotary parameters are not those of the class") {
  const auto share_of = [](const json& parameters) {
    auto config = config_of("moonshine_streaming");
    config["rope_parameters"] = parameters;
    const auto options = options_from_config(
        Changed("moonshine_streaming", config).path(),
        0,
        PretrainedPart::kDecoder);
    const auto head_dim = options.d_out() / options.num_heads();
    return options.rotary()->dim().value_or(head_dim) == head_dim;
  };
  CHECK(share_of(json::object()));
  CHECK_FALSE(share_of(nullptr));
}

TEST_CASE("Fields that a class does not read are refused or ignored") {
  // DBRX, whose class takes theta from the outer configuration.
  auto config = config_of("dbrx");
  config["attn_config"]["rope_theta"] = 77.0;
  const auto load = [&](const std::string& model, int64_t layer = 0) {
    return options_from_config(Changed(model, config).path(), layer);
  };
  THROWS_WITH(load("dbrx"), "expected rope_theta = 10000 in attn_config");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 77.0}};
  CHECK(load("dbrx").rotary()->theta() == 77);
  // Bamba sets a share beside the parameters itself.
  config = config_of("bamba");
  config["partial_rotary_factor"] = 0.25;
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 50.0}};
  CHECK(load("bamba", 1).rotary()->dim() == 4);
  config["rope_parameters"]["partial_rotary_factor"] = 0.25;
  CHECK(load("bamba", 1).rotary()->dim() == 2);
  // HunYuan's factor of theta.
  config = config_of("hunyuan_v1_dense");
  config["rope_parameters"] = {
      {"rope_type", "linear"},
      {"factor", 2.0},
      {"rope_theta", 100.0},
      {"alpha", 1000.0}};
  THROWS_WITH(load("hunyuan_v1_dense"), "beside the rope_type dynamic");
  config["rope_parameters"]["rope_type"] = "dynamic";
  CHECK(load("hunyuan_v1_dense").rotary()->theta() > 100000);
}

TEST_CASE("Positions are those that the class computes") {
  const json scaled = {
      {"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 7.0}};
  for (const std::string model : {"roformer", "esm"}) {
    CAPTURE(model);
    auto config = config_of(model);
    config["rope_parameters"] = scaled;
    config["rope_scaling"] = scaled;
    const auto rotary =
        *options_from_config(Changed(model, config).path(), 0).rotary();
    CHECK(rotary.theta() == 10000);
    CHECK(rotary.factor() == 1);
  }
  auto config = config_of("mpnet");
  config["relative_attention_num_buckets"] = 64;
  THROWS_WITH(
      relative_bias_from_pretrained(Changed("mpnet", config).path()),
      "expected relative_attention_num_buckets = 32");
  config = config_of("bert");
  config["model_type"] = "bridgetower_text_model";
  CHECK_NOTHROW(options_from_config(Changed("bert", config).path(), 0));
  config["is_decoder"] = true;
  THROWS_WITH(
      options_from_config(Changed("bert", config).path(), 0), "is_decoder");
  config = config_of("nomic_bert");
  config.erase("num_attention_heads");
  config.erase("head_dim");
  config["n_head"] = 2;
  THROWS_WITH(
      options_from_config(Changed("nomic_bert", config).path(), 0),
      "expected num_attention_heads");
  // Most encoders have no other positions.
  config = config_of("lilt");
  config["position_embedding_type"] = "absolute";
  CHECK_NOTHROW(options_from_config(Changed("lilt", config).path(), 0));
  config["position_embedding_type"] = "relative_key";
  THROWS_WITH(
      options_from_config(Changed("lilt", config).path(), 0),
      "position_embedding_type");
}

TEST_CASE("LongRoPE of Phi-3.5-MoE has one set of factors") {
  auto config = config_of("phimoe");
  config["rope_parameters"] = {
      {"rope_type", "longrope"},
      {"rope_theta", 10000.0},
      {"short_factor", {1.0, 1.5, 2.0}},
      {"long_factor", {1.0, 3.0, 6.0}},
      {"short_mscale", 1.2},
      {"long_mscale", 1.2},
      {"original_max_position_embeddings", 8}};
  const auto rotary =
      *options_from_config(Changed("phimoe", config).path(), 0).rotary();
  CHECK(rotary.long_factors() == std::vector<double>{1.0, 1.5, 2.0});
  CHECK(rotary.attention_factor() == 1.2);
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

} // namespace pretrained_rotary_test
