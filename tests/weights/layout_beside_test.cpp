// Layouts of the same keys and shapes, which only config.json tells apart.

#include <support/close.h>
#include <support/pretrained.h>

#include <torch_attention/weights/convert.h>
#include <torch_attention/weights/inspect.h>
#include <torch_attention/weights/load.h>
#include <torch_attention/weights/pretrained.h>
#include <weights/layout_beside.h>
#include <weights/layouts/find.h>
#include <weights/layouts/rules.h>
#include <weights/pretrained/families.h>

#include <fstream>
#include <sstream>

namespace layout_beside_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::weights;
using namespace torch_attention::weights::layouts;

namespace {

constexpr auto* kModel = "gpt_bigcode_heads";
constexpr auto* kPath = "transformer.h.1.attn";

MultiHeadAttention attention_of_model() {
  return MultiHeadAttention(options_from_config(model_folder(kModel), 1));
}

LoadOptions options() {
  return LoadOptions().prefix(kPath);
}

torch::Tensor whole(const Source& source) {
  std::vector<torch::Tensor> parts;
  for (const auto& part : source.parts) {
    parts.push_back(part.tensor);
  }
  return torch::cat(parts, source.dimension);
}

/// The places where a model has self-attention, and their layout.
std::vector<pretrained::Place> places_of(const std::string& model) {
  std::vector<pretrained::Place> places;
  pretrained::ModelConfig config(model_folder(model));
  for (const auto part : pretrained::parts_of(config)) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      pretrained::Wanted wanted;
      wanted.layer = layer;
      wanted.part = part;
      try {
        auto of_layer = config;
        places.push_back(
            pretrained::describe_attention(of_layer, wanted).places.front());
      } catch (const c10::Error&) {
        continue; // latent, or a layer without attention
      }
    }
  }
  return places;
}

} // namespace

TEST_CASE("config.json beside a file tells gpt_bigcode from nano_gpt") {
  const torch::NoGradGuard no_grad;
  const auto file = model_folder(kModel) + "/model.safetensors";
  auto attention = attention_of_model();
  attention->eval();
  const auto report = load_weights(*attention, file, options());
  CHECK(report.layout == "gpt_bigcode");
  CHECK(report.remarks.empty());
  CHECK_THAT(
      attention(expected(kModel, 1, "input")),
      IsCloseTo(expected(kModel, 1, "output"), {1e-5, 1e-5}));

  const auto info = inspect_weights(file);
  REQUIRE(info.attention.size() == 2);
  for (const auto& found : info.attention) {
    CHECK(found.layouts == std::vector<std::string>{"gpt_bigcode"});
    CHECK(found.remark.empty());
  }
}

TEST_CASE("Without config.json the twin of a layout is named") {
  const auto config = GENERATE("", "{", "[]", "{\"n_head\": 4}");
  CAPTURE(config);
  const Changed folder(kModel, {});
  const auto file = folder.path() + "/model.safetensors";
  const auto beside = folder.path() + "/config.json";
  std::remove(beside.c_str());
  if (*config != '\0') {
    std::ofstream(beside) << config;
  }
  auto attention = attention_of_model();
  const auto report = load_weights(*attention, file, options());
  CHECK(report.layout == "nano_gpt");
  const auto check = [](const std::string& text) {
    CHECK_THAT(
        text,
        ContainsText("are also those of gpt_bigcode") &&
            ContainsText("attention_from_pretrained"));
  };
  REQUIRE(report.remarks.size() == 1);
  check(report.remarks.front());
  std::ostringstream printed;
  printed << report;
  check(printed.str());
  check(inspect_weights(file).attention.front().remark);
  const auto converted = convert_layout(
      read_weights(file), WeightLayout::automatic(), WeightLayout::book());
  REQUIRE(converted.remarks.size() == 1);
  check(converted.remarks.front());
}

TEST_CASE("config.json of another model leaves nano_gpt") {
  auto config = config_of(kModel);
  config["model_type"] = "gpt2";
  const Changed folder(kModel, config);
  auto attention = attention_of_model();
  const auto report = load_weights(*attention, folder.path(), options());
  CHECK(report.layout == "nano_gpt");
  CHECK(report.remarks.empty());
}

TEST_CASE("An attention that config.json does not speak of is refused") {
  auto config = config_of(kModel);
  config["n_layer"] = 1;
  const Changed folder(kModel, config);
  auto attention = attention_of_model();
  THROWS_WITH(
      load_weights(*attention, folder.path(), options()),
      "it has no attention at \"transformer.h.1.attn\". "
      "attention_from_pretrained loads it from its folder");
  const auto info = inspect_weights(folder.path());
  REQUIRE(info.attention.size() == 2);
  CHECK(info.attention.front().remark.empty());
  CHECK_THAT(
      info.attention.back().remark, ContainsText("it has no attention at"));
}

TEST_CASE("The automatic layout is that of the model, or none") {
  int64_t count = 0;
  for (const auto& model : models()) {
    const auto file = model_folder(model) + "/model.safetensors";
    const auto tensors = read_weights(file);
    const auto all = find_attention(tensors);
    for (const auto& place : places_of(model)) {
      for (const auto& found : all) {
        if (!ends_with("." + found.scope, "." + place.path) ||
            found.layouts.size() != 1) {
          continue;
        }
        CAPTURE(model, found.scope);
        const auto decided =
            layout_beside(file, "")(found.scope, found.layouts.front());
        const auto automatic =
            to_canonical(tensors, found.scope, decided.layout);
        if (!are_consistent(shapes_of(automatic))) {
          continue; // refused: Qwen3-Next's gates are among the queries
        }
        for (const auto& [key, source] :
             to_canonical(tensors, found.scope, place.layout)) {
          CAPTURE(key);
          const auto same = automatic.find(key);
          if (same == automatic.end() || !source.is_found()) {
            continue; // refused for keys that it does not know
          }
          REQUIRE(same->second.is_found());
          CHECK(whole(source).equal(whole(same->second)));
          ++count;
        }
      }
    }
  }
  CHECK(count > 500);
}

} // namespace layout_beside_test
