// Files in a model's folder that change the model: adapters, other weights.

#include <support/close.h>
#include <support/pretrained.h>

#include <torch_attention/weights/inspect_pretrained.h>

#include <cstdio>
#include <string>

namespace pretrained_adapter_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;

const json& lora() {
  static const json config = {
      {"peft_type", "LORA"},
      {"base_model_name_or_path", "some/model"},
      {"r", 2},
      {"lora_alpha", 4},
      {"target_modules", {"q_proj", "v_proj"}}};
  return config;
}

void write(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

} // namespace

TEST_CASE("An adapter beside a model is refused by name") {
  const Changed model("llama", config_of("llama"));
  CHECK_NOTHROW(attention_from_pretrained(model.path(), 0));
  write(model.path() + "/adapter_config.json", lora().dump());
  const std::string text =
      "/adapter_config.json\" is an adapter (LORA of [\"q_proj\",\"v_proj\"], "
      "for \"some/model\") beside the model, which transformers applies to it";
  THROWS_WITH(attention_from_pretrained(model.path(), 0), text.c_str());
  THROWS_WITH(inspect_pretrained(model.path()), text.c_str());
  // An adapter whose configuration cannot be read counts as one.
  write(model.path() + "/adapter_config.json", "{");
  THROWS_WITH(
      attention_from_pretrained(model.path(), 0),
      "is an adapter (of an unknown");
}

TEST_CASE("Models of every class are refused beside an adapter") {
  const Changed bart("bart", config_of("bart"));
  write(bart.path() + "/adapter_config.json", lora().dump());
  THROWS_WITH(
      cross_attention_from_pretrained(bart.path(), 0), "is an adapter (LORA");
  const Changed latent("deepseek_v3", config_of("deepseek_v3"));
  write(latent.path() + "/adapter_config.json", lora().dump());
  THROWS_WITH(
      latent_attention_from_pretrained(latent.path(), 0),
      "is an adapter (LORA");
  const Changed mpnet("mpnet", config_of("mpnet"));
  write(mpnet.path() + "/adapter_config.json", lora().dump());
  THROWS_WITH(
      relative_bias_from_pretrained(mpnet.path(), PretrainedOptions()),
      "is an adapter (LORA");
}

TEST_CASE("An adapter alone is said to be one") {
  const TemporaryFolder folder;
  write(folder.file("adapter_config.json"), lora().dump());
  write(folder.file("adapter_model.safetensors"), "");
  constexpr auto* kText =
      "holds an adapter alone (LORA of [\"q_proj\",\"v_proj\"], for "
      "\"some/model\"), and no model";
  THROWS_WITH(attention_from_pretrained(folder.path(), 0), kText);
  THROWS_WITH(inspect_pretrained(folder.path()), kText);
  // An adapter with the configuration of its model, but without its weights.
  write(folder.file("config.json"), config_of("llama").dump());
  THROWS_WITH(attention_from_pretrained(folder.path(), 0), kText);
  const TemporaryFolder weights;
  write(weights.file("adapter_model.bin"), "");
  THROWS_WITH(
      attention_from_pretrained(weights.path(), 0),
      "holds an adapter alone (without configuration)");
}

TEST_CASE("The weights that a configuration names are read") {
  const torch::NoGradGuard no_grad;
  auto config = config_of("llama");
  config["transformers_weights"] = "other.safetensors";
  const Changed model("llama", config);
  THROWS_WITH(attention_from_pretrained(model.path(), 0), "other.safetensors");
  const auto file = model.path() + "/model.safetensors";
  REQUIRE(
      std::rename(
          file.c_str(), (model.path() + "/other.safetensors").c_str()) == 0);
  // The field wins over weights under the usual name.
  write(file, read_all(model_folder("qwen3") + "/model.safetensors"));
  CHECK_THAT(
      attention_from_pretrained(model.path(), 0)(expected("llama", 0, "input")),
      IsCloseTo(expected("llama", 0, "output"), {1e-5, 1e-5}));
  config["transformers_weights"] = "../other.safetensors";
  THROWS_WITH(
      attention_from_pretrained(Changed("llama", config).path(), 0),
      "expected a safetensors file in the folder as \"transformers_weights\"");
}

} // namespace pretrained_adapter_test
