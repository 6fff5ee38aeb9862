// models.json: all of its texts mean something to the library.

#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/config.h>
#include <weights/pretrained/describe.h>
#include <weights/pretrained/families.h>
#include <weights/pretrained/models_file.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace models_file_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::weights::pretrained;

namespace {

/// The functions that the steps of the file call, sorted.
std::vector<std::string> called_functions() {
  std::ifstream file(TORCH_ATTENTION_SOURCE_DIR
                     "/src/weights/pretrained/models.json");
  std::vector<std::string> names;
  for (const auto& entry : nlohmann::json::parse(file)) {
    for (const auto& step : entry.value("describe", nlohmann::json::array())) {
      const std::string call = "call: ";
      const auto text = step.get<std::string>();
      if (text.rfind(call, 0) == 0) {
        names.push_back(text.substr(call.size()));
      }
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

/// The error of describing a layer, or "".
std::string error_of(
    const std::string& type,
    const std::string& folder,
    const Wanted& wanted) {
  try {
    ModelConfig config(folder);
    for (const auto& place : describe_attention(config, wanted).places) {
      // Each has a path in the file, of the layer.
      if (place.path.empty() || place.path.find('{') != std::string::npos) {
        return "internal error: " + type + " is at \"" + place.path + "\"";
      }
    }
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

} // namespace

TEST_CASE("models.json calls functions that exist, and all of them") {
  auto names = describer_names();
  std::sort(names.begin(), names.end());
  CHECK(called_functions() == names);
}

TEST_CASE("The steps of each type in models.json can be run") {
  const TemporaryFolder folder;
  size_t described = 0;
  for (const auto& [type, entry] : model_entries()) {
    CAPTURE(type);
    const bool is_computed = entry.family || entry.parts.is_object() ||
        entry.stacks.is_object() || entry.inner.is_object() ||
        !entry.latent.empty();
    CHECK(entry.refused.empty() == is_computed);
    if (!entry.family) {
      continue;
    }
    CHECK_FALSE(entry.family->steps.empty());
    nlohmann::json config{{"model_type", type}};
    if (entry.family->has_own_configs) {
      config["encoder"] = config["decoder"] = nlohmann::json::object();
    }
    // Where the class has no sizes by default.
    for (const auto* names :
         {&entry.family->names, &entry.family->decoder_names}) {
      for (const auto& name : {names->size, names->heads, names->layers}) {
        if (!entry.defaults.contains(name)) {
          config[name] = 8;
        }
      }
    }
    std::ofstream(folder.file("config.json")) << config;
    for (int64_t layer = 0; layer < 8; ++layer) {
      for (const auto part :
           {PretrainedPart::kAuto,
            PretrainedPart::kEncoder,
            PretrainedPart::kDecoder}) {
        for (const bool is_cross : {false, true}) {
          const auto error =
              error_of(type, folder.path(), {layer, part, is_cross});
          CHECK_THAT(error, !ContainsText("models.json"));
          CHECK_THAT(error, !ContainsText("internal error"));
          CHECK_THAT(error, !ContainsText("INTERNAL ASSERT"));
          described += error.empty() ? 1 : 0;
        }
      }
    }
  }
  CHECK(described > 1500);
}

TEST_CASE("A text that is no step is a mistake in the library") {
  CHECK(read_step("rotary").arguments.empty());
  const auto step = read_step("layout: joined, bark, att_proj, out_proj");
  CHECK(step.arguments == Arguments{"joined", "bark", "att_proj", "out_proj"});
  THROWS_WITH(read_step("rotary embedding"), "models.json: unknown verb");
  THROWS_WITH(read_step("heads: 4"), "models.json: unknown verb");
  THROWS_WITH(read_step("refuse: flag"), "models.json: unknown verb");
  THROWS_WITH(read_step(""), "models.json: unknown verb");
  const TemporaryFolder folder;
  std::ofstream(folder.file("config.json")) << "{}";
  ModelConfig config(folder.path());
  Layer layer{
      config,
      0,
      PretrainedPart::kAuto,
      false,
      MultiHeadAttentionOptions(8, 8, 8, 2)};
  const auto run = [&](const char* text) {
    const auto of_text = read_step(text);
    of_text.run(layer, of_text.arguments);
  };
  THROWS_WITH(run("rotary: mirrored"), "\"rotary\" does not take \"mirrored\"");
  THROWS_WITH(run("layout: bert"), "\"layout\" does not take \"bert\"");
  THROWS_WITH(run("call: describe_all"), "does not take \"describe_all\"");
  THROWS_WITH(run("rotary: share half"), "\"half\" is no number");
  run("rotary: share 0.5, interleaved");
  CHECK(layer.options.rotary()->dim() == 2);
}

} // namespace models_file_test
