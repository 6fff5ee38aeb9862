// Configurations as in released files, which lack fields of their class or have
// others.

#include <support/pretrained.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

namespace pretrained_released_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;

MultiHeadAttentionOptions options_of(const json& config, int64_t layer = 0) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("config.json")) << config;
  return options_from_config(folder.path(), layer);
}

void check_llama() {
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
}

void check_modernbert() {
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
}

void check_llama4() {
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
  // The two frequency factors may be equal: the module gives finite numbers.
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
}

void check_qwen3_5() {
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
    CHECK(gated.output_gate().has_value());
    CHECK(gated.rotary()->dim() == 64);
    CHECK(gated.rotary()->theta() == 1e7);
    CHECK(gated.qk_norm()->unit_offset());
    THROWS_WITH(options_of(qwen, 2), "has linear attention");
  }
}

void check_hunyuan() {
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

} // namespace

TEST_CASE("Fields that released files have beside those of the class") {
  check_llama();
  check_modernbert();
  check_llama4();
  check_qwen3_5();
  check_hunyuan();
}

TEST_CASE("Latent attention and Longformer as in released files") {
  const auto read = [](const std::string& model, const json& patch) {
    auto config = config_of(model);
    config.merge_patch(patch);
    const Changed changed(model, config);
    return latent_attention_from_pretrained(changed.path(), 0)->options;
  };
  const json yarn = {
      {"beta_fast", 1.0},
      {"beta_slow", 1.0},
      {"factor", 4.0},
      {"mscale", 1.0},
      {"mscale_all_dim", 1.0},
      {"original_max_position_embeddings", 8},
      {"type", "yarn"}};
  // Kimi K2
  const auto kimi = read(
      "deepseek_v3", {{"rope_parameters", nullptr}, {"rope_scaling", yarn}});
  CHECK(kimi.rotary()->fast_turns() == kimi.rotary()->slow_turns());
  auto lacks_factor = yarn;
  lacks_factor.erase("factor");
  THROWS_WITH(
      read(
          "deepseek_v3",
          {{"rope_parameters", nullptr}, {"rope_scaling", lacks_factor}}),
      "expected \"factor\" next to \"mscale_all_dim\"");
  // GLM-5
  CHECK_NOTHROW(read(
      "glm_moe_dsa",
      {{"rope_interleave", true}, {"indexer_rope_interleave", true}}));
  // Sarvam
  auto own_name = yarn;
  own_name["type"] = "deepseek_yarn";
  CHECK(
      read(
          "sarvam_mla",
          {{"rope_parameters", nullptr},
           {"rope_scaling", own_name},
           {"q_head_dim", 10},
           {"q_lora_rank", nullptr}})
          .rotary()
          ->scaling() == RotaryScaling::kYarn);

  auto config = config_of("longformer_first");
  config["attention_mode"] = "longformer";
  config["ignore_attention_mask"] = false;
  const Changed changed("longformer_first", config);
  CHECK_NOTHROW(longformer_attention_from_pretrained(changed.path(), 0));
}

TEST_CASE("Sizes that a configuration lacks are those of its class") {
  // As in google/gemma-3-4b-it.
  const auto gemma = options_of(
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
  const auto llava = options_of(
      {{"model_type", "llava"},
       {"text_config",
        {{"max_position_embeddings", 4096}, {"model_type", "llama"}}}});
  CHECK(llava.d_in() == 4096);
  CHECK(llava.num_heads() == 32);
  CHECK(llava.context_length() == 4096);
  // As in Qwen/Qwen2-VL-2B-Instruct, whose text is not nested.
  const auto qwen = options_of(
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
  const auto pythia = options_of(
      {{"model_type", "gpt_neox"},
       {"hidden_size", 512},
       {"num_attention_heads", 8},
       {"num_hidden_layers", 6},
       {"rotary_emb_base", 10000},
       {"rotary_pct", 0.5}});
  CHECK(pythia.rotary()->dim() == 32);
  // As in tiiuae/falcon-7b.
  const auto falcon = options_of(
      {{"model_type", "falcon"},
       {"alibi", false},
       {"bias", false},
       {"hidden_size", 4544},
       {"multi_query", true},
       {"num_attention_heads", 71},
       {"parallel_attn", true}});
  CHECK(falcon.num_kv_heads() == 1);
  // Under the field names of other models.
  const auto bloom = options_of(
      {{"model_type", "bloom"},
       {"hidden_size", 1024},
       {"num_attention_heads", 16},
       {"num_hidden_layers", 24},
       {"offset_alibi", 100},
       {"seq_length", 2048}});
  CHECK(bloom.num_heads() == 16);
  CHECK(bloom.context_length() == 2048);
}

} // namespace pretrained_released_test
