// Configurations and weights of pretrained models that are refused.

#include <support/pretrained.h>

#include <fstream>
#include <string>

namespace pretrained_refused_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;

void check_refused(const char* model, const json& patch, const char* text) {
  auto config = config_of(model);
  config.merge_patch(patch);
  const Changed changed(model, config);
  THROWS_WITH(attention_from_pretrained(changed.path(), 0), text);
}

void check_refused_types() {
  check_refused(
      "llama",
      {{"model_type", "lama"}},
      "is not known, the nearest is \"llama\"; ");
  check_refused(
      "llama", {{"model_type", nullptr}}, "expected \"model_type\" in");
  check_refused(
      "llama",
      {{"model_type", "yoso"}},
      "the attention of model_type \"yoso\" of");
  check_refused(
      "llama",
      {{"model_type", "yoso"}},
      "it does not compute the softmax of all scores");
  check_refused(
      "llama",
      {{"model_type", "deepseek_v3"}},
      "is latent: latent_attention_from_pretrained loads it");
  check_refused("llama", {{"model_type", "bark"}}, "it is three models");
  check_refused(
      "llama",
      {{"model_type", "sam3_mask_decoder"}},
      "attends to a context that each call gives");
}

void check_refused_rotary() {
  check_refused(
      "llama",
      {{"rope_parameters", {{"rope_type", "longest"}}}},
      "expected a rotary embedding of type default, linear, llama3, yarn, "
      "dynamic, longrope or proportional");
  check_refused(
      "llama",
      {{"rope_parameters", {{"rope_type", "longrope"}}}},
      "expected a list of numbers as \"short_factor\"");
  check_refused(
      "llama",
      {{"rope_parameters", {{"mscale", 0.7}}}},
      "\"mscale\" of the rotary embedding of type \"default\"");
  check_refused(
      "llama_yarn",
      {{"rope_parameters", {{"truncate", 1}}}},
      "expected true or false as \"truncate\"");
  check_refused(
      "llama",
      {{"partial_rotary_factor", 0.5}},
      "expected no partial_rotary_factor");
  check_refused(
      "llama",
      {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}},
      "expected rope_parameters or rope_scaling");
  check_refused(
      "llama",
      {{"rope_parameters",
        {{"rope_theta", 1e4}, {"full_attention", {{"rope_theta", 1e5}}}}}},
      "but got one for \"full_attention\"");
}

void check_refused_fields() {
  check_refused(
      "llama",
      {{"attention_sink_size", 4}},
      "is 4; nothing is known of this field for model_type \"llama\", and it "
      "may change attention");
  check_refused("llama", {{"clip_qkv", 8.0}}, "\"clip_qkv\" of");
  check_refused(
      "llama",
      {{"num_attention_heads", "four"}},
      "expected an integer as \"num_attention_heads\"");
  check_refused(
      "llama",
      {{"num_attention_heads", 0}},
      "expected hidden_size > 0 and num_attention_heads > 0");
  check_refused(
      "qwen2",
      {{"layer_types", {"chunked_attention", "full_attention"}}},
      "expected full_attention or sliding_attention as \"layer_types\"");
  check_refused(
      "bert",
      {{"position_embedding_type", "relative_key"}},
      "expected absolute as \"position_embedding_type\"");
  check_refused("llama", {{"is_causal", false}}, "expected is_causal = true");
  check_refused(
      "gemma2",
      {{"use_bidirectional_attention", true}},
      "expected use_bidirectional_attention = false");
  check_refused("chameleon", {{"head_dim", 8}}, "\"head_dim\" of");
  check_refused(
      "patchtst",
      {{"channel_attention", true}},
      "expected channel_attention = false");
  check_refused("falcon", {{"alibi", true}}, "adds a bias by the distance");
  check_refused(
      "mistral",
      {{"layer_types", {"full_attention", "full_attention"}}},
      "expected sliding_attention as \"layer_types\"");
  check_refused("mpt", {{"attn_config", {{"qk_ln", true}}}}, "\"qk_ln\" of");
  check_refused("jamba", json::object(), "layer 0 of");
  check_refused("bamba", json::object(), "has no attention");
}

void check_refused_parts() {
  check_refused("t5", json::object(), "has an encoder and a decoder: give");
  check_refused(
      "mpnet", json::object(), "PretrainedOptions().bias_by_caller(true)");
  check_refused(
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
}

/// The weights have other sizes.
void check_refused_sizes() {
  // The class has another hidden_size.
  check_refused("llama", {{"hidden_size", nullptr}}, "size mismatch");
  check_refused("llama", {{"num_key_value_heads", 4}}, "size mismatch");
  check_refused("qwen3", {{"attention_bias", true}}, "Missing key");
}

void check_refused_layers() {
  check_refused(
      "muse_glimmer_vision",
      {{"layer_types", {"sliding_attention", "full_attention"}}},
      "expected full_attention or window_attention as \"layer_types\" of");
  check_refused(
      "minimax_m3_vl_vision",
      {{"num_attention_heads", 4}},
      "expected heads of at least 6 in");
  check_refused(
      "lfm3_vl_vision",
      {{"layer_types", {"conv", "full_attention"}}},
      "layer 0 of");
  check_refused(
      "dots3_note_audio_encoder",
      {{"whisper_config", {{"d_model", 8}}}},
      "expected no whisper_config in");
  THROWS_WITH(
      cross_attention_from_pretrained(model_folder("blip_2_qformer"), 1),
      "has no cross-attention");
  auto config = config_of("moonshine_streaming");
  const auto encoder = [&] {
    return options_from_config(
        Changed("moonshine_streaming", config).path(),
        1,
        PretrainedPart::kEncoder);
  };
  CHECK(encoder().window() == 3);
  CHECK(encoder().window_after() == 0);
  config["encoder_config"]["sliding_windows"] = {{4, 3}, {3}};
  THROWS_WITH(encoder(), "expected two sizes of layer 1 in");
  config["encoder_config"]["sliding_windows"] = {{4, 3}, {0, 3}};
  THROWS_WITH(encoder(), "expected windows of at least the token itself in");
  config["encoder_config"]["sliding_windows"] = {{4, 3}, 3};
  THROWS_WITH(encoder(), "expected a list of lists of integers as");
}

void check_refused_inner() {
  auto config = config_of("lasr_ctc");
  THROWS_WITH(
      options_from_config(
          model_folder("lasr_ctc"), 0, PretrainedPart::kEncoder),
      "has no parts, but part is encoder");
  config.erase("encoder_config");
  THROWS_WITH(
      options_from_config(Changed("lasr_ctc", config).path(), 0),
      "expected \"encoder_config\" in");
  config = config_of("nemotron3_diarization");
  config["audio_config"]["num_key_value_heads"] = 1;
  THROWS_WITH(
      options_from_config(Changed("nemotron3_diarization", config).path(), 0),
      "expected as many heads of keys as of queries in");
}

} // namespace

TEST_CASE("Configurations that cannot be followed are refused by name") {
  check_refused_types();
  check_refused_rotary();
  check_refused_fields();
  check_refused_parts();
  check_refused_sizes();
  check_refused_layers();
  check_refused_inner();
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

} // namespace pretrained_refused_test
