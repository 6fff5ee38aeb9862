// Configurations of Hugging Face's models, and their meaning.

#include <support/close.h>
#include <support/pretrained.h>

#include <cmath>
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

TEST_CASE("Configurations that cannot be followed are refused by name") {
  const auto refused =
      [](const char* model, const json& patch, const char* text) {
        auto config = config_of(model);
        config.merge_patch(patch);
        const Changed changed(model, config);
        THROWS_WITH(attention_from_pretrained(changed.path(), 0), text);
      };
  refused(
      "llama",
      {{"model_type", "lama"}},
      "is not known, the nearest is \"llama\"; ");
  refused("llama", {{"model_type", nullptr}}, "expected \"model_type\" in");
  refused(
      "llama",
      {{"attention_sink_size", 4}},
      "is 4; nothing is known of this field for model_type \"llama\", and it "
      "may change attention");
  refused("llama", {{"clip_qkv", 8.0}}, "\"clip_qkv\" of");
  refused(
      "llama",
      {{"num_attention_heads", "four"}},
      "expected an integer as \"num_attention_heads\"");
  refused(
      "llama",
      {{"num_attention_heads", 0}},
      "expected hidden_size > 0 and num_attention_heads > 0");
  // The class has another size.
  refused("llama", {{"hidden_size", nullptr}}, "size mismatch");
  refused(
      "llama",
      {{"rope_parameters", {{"rope_type", "longest"}}}},
      "expected a rotary embedding of type default, linear, llama3, yarn, "
      "dynamic, longrope or proportional");
  refused(
      "llama",
      {{"rope_parameters", {{"rope_type", "longrope"}}}},
      "expected a list of numbers as \"short_factor\"");
  refused(
      "llama",
      {{"rope_parameters", {{"mscale", 0.7}}}},
      "\"mscale\" of the rotary embedding of type \"default\"");
  refused(
      "llama_yarn",
      {{"rope_parameters", {{"truncate", 1}}}},
      "expected true or false as \"truncate\"");
  refused(
      "qwen2",
      {{"layer_types", {"chunked_attention", "full_attention"}}},
      "expected full_attention or sliding_attention as \"layer_types\"");
  refused(
      "bert",
      {{"position_embedding_type", "relative_key"}},
      "expected absolute as \"position_embedding_type\"");
  refused("llama", {{"is_causal", false}}, "expected is_causal = true");
  refused(
      "gemma2",
      {{"use_bidirectional_attention", true}},
      "expected use_bidirectional_attention = false");
  refused(
      "llama",
      {{"partial_rotary_factor", 0.5}},
      "expected no partial_rotary_factor");
  refused(
      "llama",
      {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}},
      "expected rope_parameters or rope_scaling");
  refused(
      "llama",
      {{"model_type", "deberta"}},
      "the attention of model_type \"deberta\" of");
  refused("llama", {{"model_type", "deberta"}}, "disentangled attention");
  refused(
      "llama",
      {{"model_type", "deepseek_v3"}},
      "is latent: latent_attention_from_pretrained loads it");
  refused("llama", {{"model_type", "bark"}}, "it is three models");
  refused(
      "llama",
      {{"model_type", "radio"}},
      "its configuration is not read: give MultiHeadAttentionOptions");
  refused("chameleon", {{"head_dim", 8}}, "\"head_dim\" of");
  refused(
      "patchtst",
      {{"channel_attention", true}},
      "expected channel_attention = false");
  refused("t5", json::object(), "has an encoder and a decoder: give");
  refused("falcon", {{"alibi", true}}, "adds a bias by the distance");
  refused(
      "mistral",
      {{"layer_types", {"full_attention", "full_attention"}}},
      "expected sliding_attention as \"layer_types\"");
  refused(
      "llama",
      {{"rope_parameters",
        {{"rope_theta", 1e4}, {"full_attention", {{"rope_theta", 1e5}}}}}},
      "but got one for \"full_attention\"");
  refused("mpt", {{"attn_config", {{"qk_ln", true}}}}, "\"qk_ln\" of");
  refused("mpnet", json::object(), "PretrainedOptions().bias_by_caller(true)");
  refused("jamba", json::object(), "layer 0 of");
  refused("bamba", json::object(), "has no attention");
  refused(
      "clip", json::object(), "the parts PretrainedPart::kText and kVision");
  THROWS_WITH(
      attention_from_pretrained(
          model_folder("llama"),
          0,
          PretrainedOptions().part(PretrainedPart::kText)),
      "has no parts, but part is text");
  THROWS_WITH(
      attention_from_pretrained(
          model_folder("t5"),
          0,
          PretrainedOptions().part(PretrainedPart::kEncoder)),
      "PretrainedOptions().bias_by_caller(true)");
  THROWS_WITH(
      cross_attention_from_pretrained(model_folder("llama"), 0),
      "has no cross-attention");
  THROWS_WITH(
      cross_attention_from_pretrained(model_folder("bart"), 2),
      "cross_attention_from_pretrained(");
  // The weights are of other sizes.
  refused("llama", {{"num_key_value_heads", 4}}, "size mismatch");
  refused("qwen3", {{"attention_bias", true}}, "Missing key");
}

TEST_CASE("Fields that released files have beside those of the class") {
  const auto options_of = [](const json& config, int64_t layer) {
    const TemporaryFolder folder;
    std::ofstream(folder.file("config.json")) << config;
    return options_from_config(folder.path(), layer);
  };
  const json llama = {
      {"model_type", "llama"},
      {"hidden_size", 576},
      {"num_attention_heads", 9},
      {"num_hidden_layers", 30},
      {"num_key_value_heads", 3},
      {"rope_interleaved", false},
      {"rope_theta", 100000},
      {"rope_scaling", nullptr}};
  CHECK(options_of(llama, 29).rotary()->theta() == 100000);
  const json modernbert = {
      {"model_type", "modernbert"},
      {"hidden_size", 768},
      {"num_attention_heads", 12},
      {"num_hidden_layers", 22},
      {"global_attn_every_n_layers", 3},
      {"global_rope_theta", 160000.0},
      {"local_rope_theta", 10000.0},
      {"local_attention", 128},
      {"position_embedding_type", "absolute"},
      {"classifier_bias", false},
      {"decoder_bias", true}};
  const auto local = options_of(modernbert, 1);
  CHECK_FALSE(local.causal());
  CHECK(local.window() == 65);
  CHECK(local.window_after() == 64);
  CHECK(local.rotary()->theta() == 10000);
  const auto global = options_of(modernbert, 3);
  CHECK_FALSE(global.window());
  CHECK(global.rotary()->theta() == 160000);
  const json llama4 = {
      {"model_type", "llama4"},
      {"text_config",
       {{"model_type", "llama4_text"},
        {"hidden_size", 5120},
        {"num_attention_heads", 40},
        {"num_key_value_heads", 8},
        {"num_hidden_layers", 48},
        {"head_dim", 128},
        {"no_rope_layers", json::array()},
        {"attention_chunk_size", 8192},
        {"attn_temperature_tuning", 4},
        {"attn_scale", 0.1},
        {"floor_scale", 8192},
        {"use_qk_norm", true},
        {"rope_theta", 500000.0},
        {"rope_scaling",
         {{"rope_type", "llama3"},
          {"factor", 16.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 1.0},
          {"original_max_position_embeddings", 8192}}}}}};
  const auto chunked = options_of(llama4, 0);
  CHECK(chunked.chunk() == 8192);
  CHECK(chunked.qk_norm()->after_rotary());
  CHECK_FALSE(chunked.temperature());
  // Rotates: the two numbers of turns may be equal.
  auto small = chunked;
  MultiHeadAttention attention(
      small.d_in(8).d_out(8).num_heads(2).num_kv_heads(1).head_dim(4).rotary(
          RotaryOptions(*chunked.rotary()).dim(4)));
  CHECK(
      attention->forward(torch::rand({1, 3, 8})).isfinite().all().item<bool>());
  const auto full = options_of(llama4, 3);
  CHECK_FALSE(full.chunk());
  CHECK_FALSE(full.rotary());
  CHECK(full.temperature()->floor_scale() == 8192);
  for (const std::string type : {"qwen3_5", "qwen3_5_moe"}) {
    CAPTURE(type);
    const json qwen = {
        {"model_type", type},
        {"text_config",
         {{"model_type", type + "_text"},
          {"hidden_size", 2048},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 2},
          {"num_hidden_layers", 40},
          {"head_dim", 256},
          {"attn_output_gate", true},
          {"full_attention_interval", 4},
          {"rope_parameters",
           {{"rope_type", "default"},
            {"rope_theta", 10000000},
            {"partial_rotary_factor", 0.25},
            {"mrope_section", {11, 11, 10}},
            {"mrope_interleaved", true}}}}}};
    const auto gated = options_of(qwen, 3);
    CHECK(gated.output_gate());
    CHECK(gated.rotary()->dim() == 64);
    CHECK(gated.rotary()->theta() == 1e7);
    CHECK(gated.qk_norm()->unit_offset());
    THROWS_WITH(options_of(qwen, 2), "has linear attention");
  }
  const json hunyuan = {
      {"model_type", "hunyuan_v1_dense"},
      {"hidden_size", 1024},
      {"num_attention_heads", 16},
      {"num_key_value_heads", 8},
      {"num_hidden_layers", 24},
      {"head_dim", 128},
      {"attention_head_dim", 128},
      {"use_qk_norm", true},
      {"rope_theta", 10000.0},
      {"rope_scaling",
       {{"type", "dynamic"},
        {"alpha", 1000.0},
        {"factor", 1.0},
        {"beta_fast", 32},
        {"beta_slow", 1},
        {"mscale", 1.0},
        {"mscale_all_dim", 1.0}}}};
  const auto rotary = *options_of(hunyuan, 0).rotary();
  CHECK(rotary.scaling() == RotaryScaling::kLinear);
  CHECK(rotary.theta() == Approx(1e4 * std::pow(1000.0, 128.0 / 126.0)));
}

TEST_CASE("Weights that are quantized are refused by name") {
  auto config = config_of("llama");
  const auto refused = [&](torch::ScalarType dtype, const char* text) {
    const Changed changed("llama", config);
    torch::OrderedDict<std::string, torch::Tensor> tensors;
    for (const auto& item :
         read_weights(model_folder("llama") + "/model.safetensors")) {
      tensors.insert(item.key(), item.value().to(dtype));
    }
    write_weights(tensors, changed.path() + "/model.safetensors");
    THROWS_WITH(attention_from_pretrained(changed.path(), 0), text);
  };
  refused(
      torch::kFloat8_e4m3fn,
      "the weights of \"model.layers.0.self_attn\" are quantized, which");
  config["quantization_config"] = {{"quant_method", "fp8"}};
  refused(torch::kFloat8_e4m3fn, "are quantized by fp8 (\"");
  refused(torch::kInt, "call dequantize() on it");
  // The change is in layers other than attention's.
  const Changed changed("llama", config);
  CHECK_NOTHROW(attention_from_pretrained(changed.path(), 0));
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
  // As the class makes them of a configuration without sizes by layer.
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
    CHECK(kimi.rotary().pairing() == deepseek.rotary().pairing());
  };
  check({{"model_type", "kimi_k25"}, {"text_config", config}});
  config["model_type"] = "kimi_k2";
  check(config);
}

TEST_CASE("Fields of one layer take the place of those of all") {
  auto config = config_of("llama");
  config["per_layer_config"] = {{"1", {{"head_dim", 10}}}};
  const Changed changed("llama", config);
  CHECK(options_from_config(changed.path(), 1).head_dim() == 10);
  CHECK(options_from_config(changed.path(), 0).head_dim() != 10);
  // As released files of Gemma 4 have them.
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
  // 3 of 8 elements, of which transformers rotates 4.
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
}

TEST_CASE("Folders and layers that are not there are refused by name") {
  THROWS_WITH(
      attention_from_pretrained(model_folder("llama"), 2),
      "expected a layer in [0, 2), of which");
  THROWS_WITH(
      attention_from_pretrained(model_folder("llama"), -1), "but got -1");
  THROWS_WITH(
      attention_from_pretrained(model_folder("none"), 0),
      "attention_from_pretrained(");
  THROWS_WITH(
      options_from_config(model_folder("llama") + "/model.safetensors", 0),
      "expected a JSON object in");
  const TemporaryFolder folder;
  std::ofstream(folder.file("config.json")) << std::string(100000, '[');
  THROWS_WITH(options_from_config(folder.path(), 0), "options_from_config(");
  // A file of another model.
  const Changed changed("llama", config_of("gpt2"));
  THROWS_WITH(
      attention_from_pretrained(changed.path(), 0),
      "expected keys of \"h.0.attn\" in");
}

TEST_CASE("Sizes that a configuration lacks are those of its class") {
  const auto options = [](const json& config) {
    const TemporaryFolder folder;
    std::ofstream(folder.file("config.json")) << config;
    return options_from_config(folder.path(), 0);
  };
  // As in google/gemma-3-4b-it.
  const auto gemma = options(
      {{"model_type", "gemma3"},
       {"text_config",
        {{"hidden_size", 2560},
         {"model_type", "gemma3_text"},
         {"num_hidden_layers", 34},
         {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
         {"sliding_window", 1024}}}});
  CHECK(gemma.d_in() == 2560);
  CHECK(gemma.num_heads() == 8);
  CHECK(gemma.num_kv_heads() == 4);
  CHECK(gemma.head_dim() == 256);
  CHECK(gemma.window() == 1024);
  CHECK(gemma.context_length() == 131072);
  // As in llava-hf/llava-1.5-7b-hf.
  const auto llava = options(
      {{"model_type", "llava"},
       {"text_config",
        {{"max_position_embeddings", 4096}, {"model_type", "llama"}}}});
  CHECK(llava.d_in() == 4096);
  CHECK(llava.num_heads() == 32);
  CHECK(llava.context_length() == 4096);
  // As in Qwen/Qwen2-VL-2B-Instruct, whose text is not nested.
  const auto qwen = options(
      {{"model_type", "qwen2_vl"},
       {"hidden_size", 1536},
       {"num_attention_heads", 12},
       {"num_key_value_heads", 2},
       {"max_window_layers", 28},
       {"num_hidden_layers", 28},
       {"rope_scaling", {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}}},
       {"rope_theta", 1000000.0},
       {"use_sliding_window", false},
       {"sliding_window", 32768},
       {"vision_config", {{"depth", 32}}}});
  CHECK(qwen.num_kv_heads() == 2);
  CHECK(qwen.rotary()->theta() == 1e6);
  CHECK_FALSE(qwen.window());
  // As in EleutherAI/pythia-70m.
  const auto pythia = options(
      {{"model_type", "gpt_neox"},
       {"hidden_size", 512},
       {"num_attention_heads", 8},
       {"num_hidden_layers", 6},
       {"rotary_emb_base", 10000},
       {"rotary_pct", 0.5}});
  CHECK(pythia.rotary()->dim() == 32);
  // As in tiiuae/falcon-7b.
  const auto falcon = options(
      {{"model_type", "falcon"},
       {"alibi", false},
       {"bias", false},
       {"hidden_size", 4544},
       {"multi_query", true},
       {"num_attention_heads", 71},
       {"parallel_attn", true}});
  CHECK(falcon.num_kv_heads() == 1);
  // By the name of other models.
  const auto bloom = options(
      {{"model_type", "bloom"},
       {"hidden_size", 1024},
       {"num_attention_heads", 16},
       {"num_hidden_layers", 24},
       {"offset_alibi", 100},
       {"seq_length", 2048}});
  CHECK(bloom.num_heads() == 16);
  CHECK(bloom.context_length() == 2048);
}

} // namespace pretrained_config_test
