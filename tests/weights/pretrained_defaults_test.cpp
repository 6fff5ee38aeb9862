// Fields that a configuration lacks, and those that its class does not read.

#include <support/pretrained.h>

#include <torch_attention/weights/inspect_pretrained.h>

#include <string>
#include <vector>

namespace pretrained_defaults_test {

using namespace torch_attention;
using namespace torch_attention::testing;

using nlohmann::json;

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

TEST_CASE("Windows are those that the class reads") {
  // One field for all layers, whatever layer_types say.
  auto config = config_of("qwen3_moe");
  config["sliding_window"] = 3;
  config["use_sliding_window"] = true;
  config.erase("layer_types");
  const auto window_of = [&](const std::string& type, int64_t layer) {
    config["model_type"] = type;
    return options_from_config(Changed("qwen3_moe", config).path(), layer)
        .window();
  };
  CHECK(window_of("qwen3_moe", 0) == 3);
  CHECK(window_of("qwen3_moe", 1) == 3);
  config["use_sliding_window"] = false;
  CHECK_FALSE(window_of("qwen3_moe", 1));
  config["use_sliding_window"] = true;
  config["layer_types"] = {"sliding_attention", "full_attention"};
  THROWS_WITH(
      window_of("qwen3_moe", 1),
      "expected sliding_attention as \"layer_types\"");
  config.erase("layer_types");
  for (const std::string type :
       {"qwen3_omni_moe_text", "qwen3_omni_moe_talker_text"}) {
    CAPTURE(type);
    THROWS_WITH(window_of(type, 0), "sliding_window");
  }
  config = config_of("starcoder2");
  config["model_type"] = "paddleocr_vl_text";
  config["sliding_window"] = nullptr;
  CHECK_NOTHROW(options_from_config(Changed("starcoder2", config).path(), 0));
  config["sliding_window"] = 3;
  THROWS_WITH(
      options_from_config(Changed("starcoder2", config).path(), 0),
      "sliding_window");
  // A second name of ModernBERT's window, of one side.
  config = config_of("modernbert");
  config["local_attention"] = 10;
  const auto local = [&] {
    for (int64_t layer = 0;; ++layer) {
      const auto options =
          options_from_config(Changed("modernbert", config).path(), layer);
      if (options.window()) {
        return *options.window_after();
      }
    }
  };
  CHECK(local() == 5);
  config["sliding_window"] = 2;
  CHECK(local() == 2);
}

TEST_CASE("Fields of null or below 1 are not defaults") {
  const auto refuses = [](const std::string& model,
                          const json& patch,
                          const std::string& message) {
    CAPTURE(model, patch.dump());
    auto config = config_of(model);
    config.update(patch);
    THROWS_WITH(options_from_config(Changed(model, config).path(), 1), message);
  };
  auto config = config_of("llama4");
  config.erase("layer_types");
  config["no_rope_layers"] = {1, 1};
  config["attention_chunk_size"] = nullptr;
  CHECK_FALSE(options_from_config(Changed("llama4", config).path(), 1).chunk());
  config["layer_types"] = {"chunked_attention", "chunked_attention"};
  THROWS_WITH(
      options_from_config(Changed("llama4", config).path(), 1),
      "expected a number as attention_chunk_size");
  for (const std::string model : {"llama4", "smollm3"}) {
    refuses(
        model,
        {{"no_rope_layer_interval", -2}},
        "expected no_rope_layer_interval > 0");
  }
  const json no_share = {{"rope_type", "default"}, {"rope_theta", 50.0}};
  refuses(
      "glm",
      {{"rope_parameters", no_share}, {"partial_rotary_factor", nullptr}},
      "expected a number as partial_rotary_factor");
  config = config_of("olmo_hybrid");
  config["rope_theta"] = nullptr;
  const auto rotates = [&](const json& parameters) {
    config["rope_parameters"] = parameters;
    for (int64_t layer = 0;; ++layer) {
      try {
        return options_from_config(Changed("olmo_hybrid", config).path(), layer)
            .rotary()
            .has_value();
      } catch (const c10::Error& error) {
        REQUIRE_THAT(
            error.what_without_backtrace(), ContainsText("has no attention"));
      }
    }
  };
  CHECK_FALSE(rotates(json::object()));
  CHECK_FALSE(rotates({{"rope_type", "default"}}));
  CHECK(rotates(no_share));
}

TEST_CASE("Sounds of Qwen see each other in chunks") {
  const auto chunk_of = [](const json& more) {
    json config{
        {"d_model", 16}, {"encoder_attention_heads", 2}, {"encoder_layers", 2}};
    config.update(more);
    return options_from_config(Changed("llama", config).path(), 0).chunk();
  };
  CHECK(chunk_of({{"model_type", "qwen2_5_omni_audio_encoder"}}) == 100);
  CHECK(
      chunk_of(
          {{"model_type", "qwen2_5_omni_audio_encoder"}, {"n_window", 10}}) ==
      10);
  for (const std::string type :
       {"qwen3_asr_encoder", "qwen3_omni_moe_audio_encoder"}) {
    CHECK(chunk_of({{"model_type", type}}) == 13 * 8);
    CHECK(
        chunk_of(
            {{"model_type", type},
             {"n_window", 49},
             {"n_window_infer", 300}}) == 13 * 3);
    THROWS_WITH(
        chunk_of({{"model_type", type}, {"n_window", 100}}),
        "expected n_window from 49 to 52");
    THROWS_WITH(
        chunk_of({{"model_type", type}, {"n_window_infer", 90}}),
        "expected n_window_infer of at least 2 * n_window");
  }
  CHECK_FALSE(chunk_of({{"model_type", "qwen2_audio_encoder"}}));
}

TEST_CASE("Turns of layers are positive") {
  const std::vector<std::pair<std::string, std::string>> models{
      {"exaone4", "sliding_window_pattern"},
      {"afmoe", "global_attn_every_n_layers"},
      {"modernbert", "global_attn_every_n_layers"}};
  for (const auto& [model, field] : models) {
    for (const int turn : {0, -2}) {
      CAPTURE(model, turn);
      auto config = config_of(model);
      config.erase("layer_types");
      config[field] = turn;
      THROWS_WITH(
          options_from_config(Changed(model, config).path(), 0), "expected ");
    }
  }
}

TEST_CASE("A flag that is null is off, as in Python") {
  auto config = config_of("deepseek_v3");
  config["rope_interleave"] = nullptr;
  CHECK(
      latent_options_from_config(Changed("deepseek_v3", config).path(), 0)
          .rotary()
          ->pairing() == RotaryPairing::kHalves);
  config = config_of("llama_yarn");
  config["rope_parameters"]["truncate"] = nullptr;
  CHECK_FALSE(options_from_config(Changed("llama_yarn", config).path(), 0)
                  .rotary()
                  ->truncate());
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

TEST_CASE("Two names of one field have to agree") {
  auto config = config_of("gpt2");
  config["num_attention_heads"] = config["n_head"];
  CHECK_NOTHROW(options_from_config(Changed("gpt2", config).path(), 0));
  config["num_attention_heads"] = 2;
  THROWS_WITH(
      options_from_config(Changed("gpt2", config).path(), 0),
      "expected one of \"n_head\" and \"num_attention_heads\"");
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
