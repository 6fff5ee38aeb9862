// Attention of models as Hugging Face's `save_pretrained` writes them.

#include <support/close.h>
#include <support/files.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <set>
#include <sstream>

using namespace torch_attention;
using namespace torch_attention::testing;

namespace pretrained_test {

namespace {

using nlohmann::json;

constexpr int64_t kLayers = 2;

std::string folder_of(const std::string& model) {
  return TORCH_ATTENTION_GOLDEN_DIR "/pretrained/" + model;
}

std::vector<std::string> models() {
  return files_in(TORCH_ATTENTION_GOLDEN_DIR "/pretrained");
}

json config_of(const std::string& model) {
  return json::parse(read_all(folder_of(model) + "/config.json"));
}

/// A copy of a model's folder with another configuration.
class Changed {
 public:
  Changed(const std::string& model, const json& config) {
    for (const auto& file : files_in(folder_of(model))) {
      std::ofstream(folder_.file(file), std::ios::binary)
          << read_all(folder_of(model) + "/" + file);
    }
    std::ofstream(folder_.file("config.json")) << config;
  }

  std::string path() const {
    return folder_.path();
  }

 private:
  TemporaryFolder folder_;
};

torch::Tensor expected(
    const std::string& model,
    int64_t layer,
    const char* what) {
  const auto tensors = read_weights(folder_of(model) + "/expected.safetensors");
  const auto* found = tensors.find(c10::str(layer, ".", what));
  REQUIRE(found != nullptr);
  return *found;
}

} // namespace

TEST_CASE("Layers of pretrained models give their numbers") {
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  std::set<std::string> types;
  const torch::NoGradGuard no_grad;
  for (const auto& model : models()) {
    types.insert(config_of(model).at("model_type").get<std::string>());
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      CAPTURE(model, layer, kernel);
      auto attention = attention_from_pretrained(folder_of(model), layer);
      attention->options.kernel(kernel);
      CHECK_FALSE(attention->is_training());
      const auto x = expected(model, layer, "input");
      const auto output = expected(model, layer, "output");
      CHECK_THAT(attention(x), IsCloseTo(output, {1e-5, 1e-5}));
      if (!attention->options.causal()) {
        continue;
      }
      auto cache = attention->make_cache(x.size(0));
      std::vector<torch::Tensor> steps = {
          attention->decode(x.slice(1, 0, 4), cache)};
      for (int64_t t = 4; t < x.size(1); ++t) {
        steps.push_back(attention->decode(x.slice(1, t, t + 1), cache));
      }
      CHECK_THAT(torch::cat(steps, 1), IsCloseTo(output, {1e-5, 1e-5}));
    }
  }
  const auto known = pretrained_model_types();
  CHECK(types == std::set<std::string>(known.begin(), known.end()));
}

TEST_CASE("Pretrained attention takes dtype and length, and says what it did") {
  std::ostringstream log;
  const auto attention = attention_from_pretrained(
      folder_of("qwen3"),
      1,
      PretrainedOptions().dtype(torch::kBFloat16).context_length(7).log(&log));
  CHECK(attention->W_query->weight.scalar_type() == torch::kBFloat16);
  CHECK(attention->options.context_length() == 7);
  CHECK_THAT(
      log.str(),
      ContainsText("layer 1 of qwen3\ntorch_attention::MultiHeadAttention(") &&
          ContainsText("qk_norm=rms") &&
          ContainsText("model.layers.1.self_attn.q_norm.weight"));
  CHECK_FALSE(attention->mask.defined());
}

TEST_CASE("Options come from a configuration alone") {
  const auto options =
      options_from_config(folder_of("gemma3") + "/config.json", 0);
  CHECK(options.d_in() == 24);
  CHECK(options.num_heads() == 4);
  CHECK(options.num_kv_heads() == 2);
  CHECK(options.head_dim() == 8);
  CHECK(options.window() == 3);
  CHECK(options.scale() == 1 / std::sqrt(12.0));
  CHECK(options.rotary()->theta() == 10000);
  CHECK(options.qk_norm()->unit_offset());
  CHECK_FALSE(options.out_bias());
  const auto full = options_from_config(folder_of("gemma3"), 1);
  CHECK_FALSE(full.window());
  CHECK(full.rotary()->theta() == 1000000);
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
    config["num_hidden_layers"] = 8;
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
      "is not known, the nearest is \"llama\"; known are bert, camembert");
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
  refused("llama", {{"hidden_size", nullptr}}, "expected \"hidden_size\" in");
  refused(
      "llama",
      {{"rope_parameters", {{"rope_type", "longrope"}}}},
      "expected a rotary embedding of type default, linear, llama3 or yarn");
  refused(
      "llama",
      {{"rope_parameters", {{"mscale", 0.7}}}},
      "\"mscale\" of the rotary embedding of type \"default\"");
  refused(
      "llama_yarn",
      {{"rope_parameters", {{"truncate", false}}}},
      "expected truncate = true");
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
      "gemma3",
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
  // The weights are of other sizes.
  refused("llama", {{"num_key_value_heads", 4}}, "size mismatch");
  refused("qwen3", {{"attention_bias", true}}, "Missing key");
}

TEST_CASE("Folders and layers that are not there are refused by name") {
  THROWS_WITH(
      attention_from_pretrained(folder_of("llama"), 2),
      "expected a layer in [0, 2), of which");
  THROWS_WITH(attention_from_pretrained(folder_of("llama"), -1), "but got -1");
  THROWS_WITH(
      attention_from_pretrained(folder_of("none"), 0),
      "attention_from_pretrained(");
  THROWS_WITH(
      options_from_config(folder_of("llama") + "/model.safetensors", 0),
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

} // namespace pretrained_test
