#include <support/golden.h>
#include <support/pretrained.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <tools/inspect.h>
#include <torch_attention/weights/inspect_pretrained.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>

namespace inspect_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::tools;

namespace {

std::string inspect(
    const std::string& path,
    const InspectOptions& options = {},
    bool as_json = false) {
  std::ostringstream out;
  inspect_file(path, options, as_json, out);
  return out.str();
}

nlohmann::json inspect_json(const std::string& path) {
  return nlohmann::json::parse(inspect(path, {}, /*as_json=*/true));
}

} // namespace

TEST_CASE("inspect shows tensors, layout and possible heads") {
  const auto text = inspect(golden("layouts/gpt2.safetensors"));
  CHECK_THAT(
      text,
      ContainsText(
          "gpt2.safetensors: safetensors file, 28 tensors, 16.1 kB\n") &&
          ContainsText(
              "transformer.h.0.attn.c_attn.weight  (12, 36)          float32 "
              "      1.7 kB\n") &&
          ContainsText("transformer.h.1.attn: layout gpt2, W_query (12, 12), "
                       "possibly 1, 2, 3, 4, 6, 12 heads\n"));
}

TEST_CASE("inspect takes a part of a file") {
  const auto text = inspect(
      golden("layouts/gpt2.safetensors"),
      InspectOptions().prefix("transformer.h.1.attn"));
  CHECK_THAT(
      text,
      ContainsText("4 tensors") &&
          ContainsText("the file itself: layout gpt2"));
}

TEST_CASE("inspect says of which keys loading makes an error") {
  const TemporaryFolder folder;
  const auto path = folder.file("qwen3.safetensors");
  auto tensors = read_weights(golden("layouts/llama.safetensors"));
  const auto attention =
      inspect_weights(golden("layouts/llama.safetensors")).attention.at(0).path;
  tensors.insert(attention + ".q_norm.weight", torch::ones({8}));
  write_weights(tensors, path);
  CHECK_THAT(
      inspect(path),
      ContainsText("heads; loading refuses it for keys that the layout does "
                   "not know: q_norm.weight\n"));
}

TEST_CASE("inspect counts the heads that a file lists") {
  CHECK_THAT(
      inspect(golden("layouts/wrapper.safetensors")),
      ContainsText("layout head_list") && ContainsText(", 3 heads\n"));
}

TEST_CASE("inspect prints JSON") {
  const auto json = inspect_json(golden("layouts/llama.safetensors"));
  CHECK(json["format"] == "safetensors file");
  CHECK(json["attention"].at(0)["layout"] == "llama");
  // Several query heads share a key head.
  const auto heads =
      json["attention"].at(0)["possible_num_heads"].get<std::vector<int64_t>>();
  CHECK_FALSE(heads.empty());
  const auto rows =
      json["attention"].at(0)["shapes"]["W_key.weight"].at(0).get<int64_t>();
  const auto query_rows =
      json["attention"].at(0)["shapes"]["W_query.weight"].at(0).get<int64_t>();
  REQUIRE(rows < query_rows);
  for (const auto count : heads) {
    CHECK(rows % (query_rows / count) == 0);
  }
  int64_t bytes = 0;
  for (const auto& tensor : json["tensors"]) {
    bytes += tensor["bytes"].get<int64_t>();
  }
  CHECK(json["bytes"] == bytes);
}

TEST_CASE("inspect prints the layers of a model as JSON") {
  CHECK(inspect_json(golden("layouts/llama.safetensors"))["model"].is_null());
  const auto model = inspect_json(golden("pretrained/gemma3"))["model"];
  const auto info = inspect_pretrained(golden("pretrained/gemma3"));
  CHECK(model["model_type"] == "gemma3_text");
  CHECK(model["refused"].is_null());
  REQUIRE(model["layers"].size() == info.layers.size());
  for (size_t i = 0; i < info.layers.size(); ++i) {
    const auto& layers = model["layers"][i];
    CHECK(layers["part"] == "auto");
    CHECK(layers["numbers"] == info.layers[i].numbers);
    CHECK(layers["description"] == info.layers[i].description);
    CHECK(layers["options"] == info.layers[i].options);
    CHECK(layers["call"] == info.layers[i].call);
  }
  SECTION("without options where there are none") {
    const auto latent = inspect_json(golden("pretrained/deepseek_v3"))["model"];
    CHECK(latent["layers"][0]["is_latent"] == true);
    CHECK(latent["layers"][0]["options"].is_null());
  }
  SECTION("with the parts of a model that has several") {
    const auto layers =
        inspect_json(golden("pretrained/bart"))["model"]["layers"];
    CHECK(layers[0]["part"] == "encoder");
    CHECK(layers[1]["part"] == "decoder");
    CHECK(layers[2]["is_cross"] == true);
  }
  SECTION("or the reason why they cannot be loaded") {
    auto config = config_of("llama");
    config["model_type"] = "yoso";
    const auto refused = inspect_json(Changed("llama", config).path())["model"];
    CHECK(refused["model_type"] == "yoso");
    CHECK(refused["layers"].empty());
    CHECK_THAT(
        refused["refused"].get<std::string>(),
        ContainsText("is not computed: it does not compute the softmax"));
  }
}

TEST_CASE("inspect names the state dict among training state") {
  const auto text = inspect(golden("files/state-dict-key.pt"));
  CHECK_THAT(
      text,
      ContainsText("state dict: state_dict\n") &&
          ContainsText("optimizer.state.0.exp_avg") &&
          ContainsText("epoch                         no tensor\n"));
}

TEST_CASE("inspect checks all values if asked") {
  const auto options = InspectOptions().check(true);
  CHECK_THAT(
      inspect(golden("files/checksums.safetensors"), options),
      ContainsText("safetensors file"));
  THROWS_WITH(
      inspect(golden("files/legacy.pt"), options),
      "a torch.save file of before PyTorch 1.6");
}

TEST_CASE("inspect lists the layers of a model and the lines that make them") {
  const auto text = inspect(golden("pretrained/gemma3"));
  CHECK_THAT(
      text,
      ContainsText("layer 0: 4 heads of 8 (2 of keys), causal, window 3, "
                   "rotary, norms of queries and keys, no bias\n"
                   "MultiHeadAttentionOptions(24, 24, 32, 4)\n") &&
          ContainsText("    .window(3)\n") &&
          ContainsText("    .qk_norm(HeadNormOptions().unit_offset(true))\n"
                       "    .rotary(RotaryOptions().dim(8))\n") &&
          ContainsText("layer 1: 4 heads of 8 (2 of keys), causal, rotary, ") &&
          ContainsText(
              "attention_from_pretrained(\"" + golden("pretrained/gemma3") +
              "\", layer)\n"));
  CHECK_THAT(
      inspect(golden("pretrained/llama")), ContainsText("layers 0-1: 4 heads"));
  CHECK_THAT(
      inspect(golden("pretrained/jamba")),
      ContainsText("layer 0: no attention\nlayer 1: 4 heads of 6"));
  CHECK_THAT(
      inspect(golden("pretrained/bart")),
      ContainsText("encoder layers 0-1: 4 heads of 6, to both sides") &&
          ContainsText("decoder layers 0-1: 2 heads of 12, causal") &&
          ContainsText("cross-attention layers 0-1: 2 heads of 12, all") &&
          ContainsText("PretrainedOptions().part(PretrainedPart::kDecoder)"));
  CHECK_THAT(
      inspect(golden("pretrained/deepseek_v3")),
      ContainsText("layers 0-1: latent attention, ") &&
          ContainsText("\nlatent_attention_from_pretrained("));
  CHECK_THAT(
      inspect(golden("pretrained/wav2vec2-bert_clipped")),
      ContainsText("learned relative positions from -3 to 2") &&
          ContainsText("\nrelative_attention_from_pretrained("));
}

TEST_CASE("inspect says why a folder's attention is not computed") {
  const auto why = [](const char* type) {
    auto config = config_of("llama");
    config["model_type"] = type;
    return inspect(Changed("llama", config).path());
  };
  CHECK_THAT(
      why("yoso"),
      ContainsText("the attention of model_type \"yoso\" of") &&
          ContainsText(
              "is not computed: it does not compute the softmax of all "
              "scores\n"));
  CHECK_THAT(why("lama"), ContainsText("the nearest is \"llama\""));
}

TEST_CASE("inspect says that a folder holds an adapter alone") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("adapter_config.json"))
      << R"({"peft_type": "LORA", "target_modules": ["q_proj"]})";
  std::ofstream(folder.file("adapter_model.safetensors"), std::ios::binary)
      << read_all(golden("files/plain.safetensors"));
  CHECK_THAT(
      inspect(folder.path()),
      ContainsText(
          "holds an adapter alone (LORA of [\"q_proj\"]), and no model"));
}

TEST_CASE("inspect reads the numbers that Python writes beside JSON's") {
  auto config = config_of("bamba").dump();
  config.insert(1, R"("time_step_limit":[0.0,Infinity],"note":"NaN \"-",)");
  const Changed changed("bamba", config_of("bamba"));
  std::ofstream(changed.path() + "/config.json") << config;
  CHECK_THAT(
      inspect(changed.path()), ContainsText("\nattention_from_pretrained("));
}

} // namespace inspect_test
