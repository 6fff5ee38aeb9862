// The folders that save_gpt2 writes, and models that it refuses.

#include <support/close.h>
#include <support/temporary_folder.h>

#include <models/decoder_golden.h>
#include <torch_attention/models/generate.h>
#include <torch_attention/models/gpt2.h>
#include <torch_attention/nn/utils/swap.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <functional>

namespace gpt2_folder_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

models::Gpt2 loaded() {
  return models::gpt2_from_pretrained(decoder_folder("gpt2"));
}

MultiHeadAttention& attention_of(models::Gpt2& model, size_t layer) {
  return model->trf_blocks[layer]->as<models::Gpt2Block>()->att;
}

nlohmann::json config_in(const TemporaryFolder& folder) {
  std::ifstream file(folder.file("config.json"));
  return nlohmann::json::parse(file);
}

} // namespace

TEST_CASE("Attention that GPT-2's configuration lacks words for is not saved") {
  const TemporaryFolder folder;
  using Change = std::function<void(MultiHeadAttentionOptions&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"rule (causal, window, chunk, softcap)",
       [](auto& options) { options.causal(false); }},
      {"rule (causal, window, chunk, softcap)",
       [](auto& options) { options.window(3); }},
      {"rule (causal, window, chunk, softcap)",
       [](auto& options) { options.softcap(5); }},
      {"alibi", [](auto& options) { options.alibi(true); }},
      {"rotary", [](auto& options) { options.rotary(RotaryOptions()); }},
      {"clip_qkv", [](auto& options) { options.clip_qkv(1); }},
      {"value_norm_eps", [](auto& options) { options.value_norm_eps(1e-6); }},
      {"value_scale", [](auto& options) { options.value_scale(0.5); }},
      {"query_scale", [](auto& options) { options.query_scale(true); }},
      {"out_norm", [](auto& options) { options.out_norm(HeadNormOptions()); }},
      {"temperature",
       [](auto& options) { options.temperature(TemperatureOptions(8)); }},
      {"context_length", [](auto& options) { options.context_length(7); }},
      {"needs_blocks", [](auto& options) { options.needs_blocks(true); }},
      {"needs_value_input",
       [](auto& options) { options.needs_value_input(true); }},
  };
  for (const auto& [name, change] : changes) {
    CAPTURE(name);
    auto model = loaded();
    change(attention_of(model, 1)->options);
    THROWS_WITH(
        models::save_gpt2(*model, folder.path()),
        std::string("but ") + name + " of layer 1 differs from it");
    CHECK(std::filesystem::is_empty(folder.path()));
  }
  auto model = loaded();
  attention_of(model, 0)->dropout->options.p(0.5);
  THROWS_WITH(models::save_gpt2(*model, folder.path()), "dropout of layer 0");
}

TEST_CASE("Each dropout of a GPT-2 is its own in files") {
  const TemporaryFolder folder;
  torch::manual_seed(1);
  models::Gpt2 made(models::Gpt2Options()
                        .vocab_size(8)
                        .context_length(8)
                        .emb_dim(8)
                        .n_heads(2)
                        .n_layers(2)
                        .drop_rate(0.3)
                        .attention_drop_rate(0.2)
                        .embedding_drop_rate(0));
  models::save_gpt2(*made, folder.path());
  CHECK(config_in(folder)["resid_pdrop"] == 0.3);
  CHECK(config_in(folder)["attn_pdrop"] == 0.2);
  CHECK(config_in(folder)["embd_pdrop"] == 0.0);
  auto model = models::gpt2_from_pretrained(folder.path());
  CHECK(model->drop_emb->options.p() == 0);
  CHECK(attention_of(model, 1)->dropout->options.p() == 0.2);
  CHECK(
      model->trf_blocks[1]
          ->as<models::Gpt2Block>()
          ->drop_shortcut->options.p() == 0.3);
  const TemporaryFolder again;
  models::save_gpt2(*model, again.path());
  CHECK(config_in(again) == config_in(folder));
}

TEST_CASE("Notes are no fields of the configuration") {
  const TemporaryFolder folder;
  auto model = loaded();
  for (const auto* name :
       {"n_head", "vocab_size", "pad_token_id", "add_cross_attention"}) {
    CAPTURE(name);
    THROWS_WITH(
        models::save_gpt2(*model, folder.path(), {{name, "1"}}),
        std::string("but \"") + name + "\" is a field of the configuration");
  }
  THROWS_WITH(
      models::save_gpt2(*model, folder.path(), {{"a", "1"}, {"a", "2"}}),
      "or given twice");
  CHECK(std::filesystem::is_empty(folder.path()));
  models::save_gpt2(*model, folder.path(), {{"trained_on", "poems"}});
  CHECK(config_in(folder)["trained_on"] == "poems");
}

TEST_CASE("A configuration that cannot be written leaves the weights alone") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("model.safetensors")) << "weights of before";
  std::filesystem::create_directory(folder.file("config.json"));
  auto model = loaded();
  CHECK_THROWS_AS(models::save_gpt2(*model, folder.path()), c10::Error);
  std::ifstream file(folder.file("model.safetensors"));
  std::string text;
  std::getline(file, text);
  CHECK(text == "weights of before");
}

TEST_CASE("Tokens that a GPT-2's configuration leaves out are its class's") {
  const TemporaryFolder folder;
  auto model = loaded();
  models::save_gpt2(*model, folder.path());
  CHECK(config_in(folder)["eos_token_id"].is_null());
  auto config = config_in(folder);
  config.erase("eos_token_id");
  std::ofstream(folder.file("config.json")) << config;
  model = models::gpt2_from_pretrained(folder.path());
  CHECK(model->options.eos_token_id() == std::vector<int64_t>{50256});
}

TEST_CASE("A GPT-2 may have several tokens that end a text") {
  const TemporaryFolder folder;
  auto model = loaded();
  models::save_gpt2(*model, folder.path());
  for (const auto& tokens :
       {nlohmann::json({3, 5}), nlohmann::json(7), nlohmann::json()}) {
    CAPTURE(tokens.dump());
    auto config = config_in(folder);
    config["eos_token_id"] = tokens;
    std::ofstream(folder.file("config.json")) << config;
    model = models::gpt2_from_pretrained(folder.path());
    CHECK(
        model->options.eos_token_id() ==
        models::stop_tokens_from_pretrained(folder.path()));
    models::save_gpt2(*model, folder.path());
    CHECK(config_in(folder)["eos_token_id"] == tokens);
  }
}

} // namespace gpt2_folder_test
