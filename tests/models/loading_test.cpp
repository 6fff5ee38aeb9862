// Loading of models: random numbers, dtypes, defaults, and files that are
// refused.

#include <support/close.h>
#include <support/temporary_folder.h>

#include <models/decoder_golden.h>
#include <models/encoder_golden.h>
#include <torch_attention/models/bert.h>
#include <torch_attention/models/gpt2.h>
#include <torch_attention/models/llama.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

namespace loading_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

/// A copy of a folder with other values of some fields, and without one.
class ChangedFolder {
 public:
  ChangedFolder(
      const std::string& source,
      const nlohmann::json& changes,
      const char* without = "") {
    std::ifstream file(source + "/config.json");
    auto config = nlohmann::json::parse(file);
    config.update(changes);
    config.erase(without);
    std::ofstream(folder_.file("config.json")) << config;
    for (const auto& entry : std::filesystem::directory_iterator(source)) {
      const auto name = entry.path().filename().string();
      if (name.rfind("model", 0) == 0) {
        std::filesystem::copy(entry.path(), folder_.file(name));
      }
    }
  }

  std::string path() const {
    return folder_.path();
  }

 private:
  TemporaryFolder folder_;
};

std::shared_ptr<models::LanguageModel> changed(
    const char* name,
    const nlohmann::json& changes) {
  return models::language_model_from_pretrained(
      ChangedFolder(decoder_folder(name), changes).path());
}

nlohmann::json config_of(const char* name) {
  std::ifstream file(decoder_folder(name) + "/config.json");
  return nlohmann::json::parse(file);
}

models::Bert changed_encoder(
    const std::string& folder,
    const nlohmann::json& changes) {
  return models::bert_from_pretrained(
      ChangedFolder(TORCH_ATTENTION_GOLDEN_DIR "/" + folder, changes).path());
}

} // namespace

TEST_CASE("Loading draws no random numbers") {
  const auto next_after = [](const auto& load) {
    torch::manual_seed(5);
    load();
    return torch::rand({2});
  };
  const auto expected = next_after([] {});
  for (const auto* name : kDecoders) {
    CAPTURE(name);
    CHECK(next_after([&] {
            models::language_model_from_pretrained(decoder_folder(name));
          }).equal(expected));
  }
  for (const auto* name : kEncoders) {
    CAPTURE(name);
    CHECK(next_after([&] {
            models::bert_from_pretrained(encoder_folder(name));
          }).equal(expected));
  }
  CHECK_FALSE(next_after([] {
                models::Gpt2(models::Gpt2Options().vocab_size(8).n_layers(0));
              }).equal(expected));
}

TEST_CASE("A model without layers has the dtype that was wanted") {
  const auto options =
      models::PretrainedModelOptions().num_layers(0).dtype(torch::kBFloat16);
  const auto check = [](torch::nn::Module& model) {
    CHECK_FALSE(model.parameters().empty());
    for (const auto& parameter : model.parameters()) {
      CHECK(parameter.scalar_type() == torch::kBFloat16);
    }
  };
  for (const auto* name : {"gpt2", "llama", "gemma2"}) {
    CAPTURE(name);
    check(
        *models::language_model_from_pretrained(decoder_folder(name), options));
  }
  for (const auto* name : {"bert", "mpnet"}) {
    CAPTURE(name);
    check(*models::bert_from_pretrained(encoder_folder(name), options));
  }
  THROWS_WITH(
      models::language_model_from_pretrained(
          decoder_folder("gpt2"),
          models::PretrainedModelOptions(options).dtype(torch::kInt)),
      "expected the dtype Float, Double, BFloat16 or Half");
}

TEST_CASE("Sizes of the configuration are those of the tensors") {
  THROWS_WITH(
      changed("llama", {{"vocab_size", 65}}),
      "expected 64 as \"vocab_size\" of");
  THROWS_WITH(changed("qwen3", {{"intermediate_size", 41}}), "but got 41");
  THROWS_WITH(changed("gpt2", {{"vocab_size", 63}}), "but got 63");
  THROWS_WITH(changed("gpt2", {{"n_positions", 95}}), "but got 95");
  THROWS_WITH(
      changed_encoder("encoders/bert", {{"type_vocab_size", 3}}),
      "expected 2 as \"type_vocab_size\" of");
}

TEST_CASE("Gemma 1 goes by hidden_act, later ones by hidden_activation") {
  const auto logits = [&](const char* name, const nlohmann::json& changes) {
    return changed(name, changes)->forward(expected_of(name, "ids"));
  };
  const auto tanh = expected_of("gemma", "logits");
  const Tolerance tolerance{/*rtol=*/0, /*atol=*/1e-4};
  for (const auto* name : {"gelu", "gelu_pytorch_tanh"}) {
    CHECK_THAT(
        logits("gemma", {{"hidden_act", name}}), IsCloseTo(tanh, tolerance));
  }
  CHECK_THAT(
      logits("gemma", {{"hidden_activation", "relu"}}),
      IsCloseTo(tanh, tolerance));
  CHECK_FALSE(torch::allclose(
      logits("gemma", {{"hidden_act", "relu"}}), tanh, 0, 1e-3));
  CHECK_FALSE(torch::allclose(
      logits("gemma2", {{"hidden_activation", "relu"}}),
      expected_of("gemma2", "logits"),
      0,
      1e-3));
}

TEST_CASE("Only Gemma bounds its logits") {
  CHECK_THAT(
      changed("llama", {{"final_logit_softcapping", 0.01}})
          ->forward(expected_of("llama", "ids")),
      IsCloseTo(expected_of("llama", "logits"), {/*rtol=*/0, /*atol=*/1e-4}));
  THROWS_WITH(
      changed("gemma2", {{"final_logit_softcapping", 0.0}}),
      "expected final_logit_softcapping > 0");
}

TEST_CASE("Models with images do not bound the logits of their text") {
  const auto* name = "gemma3_with_images";
  auto text = config_of(name)["text_config"];
  text["final_logit_softcapping"] = 0.01;
  CHECK_THAT(
      changed(name, {{"text_config", text}})->forward(expected_of(name, "ids")),
      IsCloseTo(expected_of(name, "logits"), {/*rtol=*/0, /*atol=*/1e-4}));
}

TEST_CASE("Models of sound put the epsilon of norms into their text") {
  auto text = config_of("llama");
  text.erase("rms_norm_eps");
  for (const auto& [type, eps] :
       {std::pair{"voxtral", 1e-5},
        std::pair{"glmasr", 1e-5},
        std::pair{"llava", 1e-6}}) {
    CAPTURE(type);
    const ChangedFolder folder(
        decoder_folder("llama"), {{"model_type", type}, {"text_config", text}});
    const auto model = models::llama_from_pretrained(folder.path());
    CHECK(model->options.norm_eps() == eps);
  }
}

TEST_CASE("ELECTRA's defaults are its own") {
  const auto source = TORCH_ATTENTION_GOLDEN_DIR "/heatmap/electra";
  for (const auto& [field, size] :
       {std::pair{"intermediate_size", "1024"},
        std::pair{"hidden_size", "256"}}) {
    CAPTURE(field);
    // The file has other sizes than the class.
    const ChangedFolder folder(source, nlohmann::json::object(), field);
    THROWS_WITH(models::bert_from_pretrained(folder.path()), size);
  }
}

TEST_CASE("Null is no value of a field that has a default") {
  THROWS_WITH(
      changed("llama", {{"rms_norm_eps", nullptr}}),
      "expected a value as \"rms_norm_eps\"");
  THROWS_WITH(
      changed("gpt2", {{"resid_pdrop", nullptr}}),
      "expected a value as \"resid_pdrop\"");
  THROWS_WITH(
      changed_encoder("encoders/bert", {{"hidden_act", nullptr}}),
      "expected a value as \"hidden_act\"");
}

TEST_CASE("Activations are those of transformers") {
  const torch::NoGradGuard no_gradients;
  const auto expected =
      read_weights(decoder_folder("activations/expected.safetensors"));
  const auto x = expected["x"].unsqueeze(-1);
  for (const auto& item : expected) {
    CAPTURE(item.key());
    if (item.key() == "x") {
      continue;
    }
    // Layers of one weight, which is 1.
    models::Gpt2FeedForward feed_forward(
        models::Gpt2Options().emb_dim(1).hidden_dim(1).activation(item.key()));
    for (auto& parameter : feed_forward->named_parameters()) {
      const auto& name = parameter.key();
      parameter.value().fill_(name.find("bias") == std::string::npos ? 1 : 0);
    }
    CHECK_THAT(
        feed_forward->forward(x).squeeze(-1),
        IsCloseTo(item.value(), {/*rtol=*/1e-5, /*atol=*/1e-6}));
  }
  CHECK(expected.size() == 22);
}

TEST_CASE("An activation that is not known is refused by its field") {
  THROWS_WITH(
      changed("gpt2", {{"activation_function", "prelu"}}),
      "but got \"prelu\", as \"activation_function\" of");
  THROWS_WITH(
      changed_encoder("encoders/distilbert", {{"activation", "xielu"}}),
      "but got \"xielu\", as \"activation\" of");
}

TEST_CASE("Only Llama reads mlp_bias") {
  CHECK_THAT(
      changed("qwen3", {{"mlp_bias", true}})
          ->forward(expected_of("qwen3", "ids")),
      IsCloseTo(expected_of("qwen3", "logits"), {/*rtol=*/0, /*atol=*/1e-4}));
  THROWS_WITH(
      changed("llama", {{"mlp_bias", true}}),
      "expected a tensor \"model.layers.0.mlp.gate_proj.bias\"");
}

TEST_CASE("Positions of MPNet are counted from 1 in any case") {
  const auto folder = "encoders/mpnet";
  const auto ids = torch::tensor({{5, 1, 7, 8}});
  CHECK(
      changed_encoder(folder, {{"pad_token_id", 0}})
          ->forward(ids)
          .equal(
              changed_encoder(folder, nlohmann::json::object())->forward(ids)));
  THROWS_WITH(
      changed_encoder("heatmap/roberta", {{"pad_token_id", nullptr}}),
      "expected a value as \"pad_token_id\"");
}

} // namespace loading_test
