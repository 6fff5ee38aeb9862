// Configurations of pretrained models that were not written by `transformers`:
// each gives options, or is refused in few words, time and memory.

#include <support/costs.h>
#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

extern "C" int fuzz_config(const uint8_t* data, size_t size);

namespace config_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Json = nlohmann::ordered_json;

/// Reads the configuration as the library does, and checks what it costs.
void check_costs(const std::string& bytes, const std::string& message) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("config.json"), std::ios::binary) << bytes;
  const auto costs =
      costs_of([&] { options_from_config(folder.file("config.json"), 0); });
  const auto size = static_cast<double>(bytes.size()) / 1e6;
  CAPTURE(costs.seconds, costs.megabytes, costs.error, size);
  CHECK_THAT(costs.error, ContainsText(message));
  CHECK(costs.error.size() < 8000);
#if !defined(__SANITIZE_ADDRESS__)
  CHECK(costs.seconds < 1 + size);
  // A number of a list, two bytes, becomes a value of 40, and lists that grow
  // are copied.
  CHECK(costs.megabytes < 60 + 40 * size);
#endif
}

/// Returns `count` times `text`, with commas between.
std::string list_of(const std::string& text, int count) {
  std::string list;
  for (int i = 0; i < count; ++i) {
    list += (i == 0 ? "" : ",") + text;
  }
  return list;
}

std::vector<std::string> golden_configs() {
  std::vector<std::string> texts;
  std::vector<std::filesystem::path> paths;
  for (const auto& folder :
       std::filesystem::directory_iterator(golden("pretrained"))) {
    paths.push_back(folder.path() / "config.json");
  }
  // In an order that is the same everywhere.
  std::sort(paths.begin(), paths.end());
  const std::istreambuf_iterator<char> end;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    if (file) {
      texts.emplace_back(std::istreambuf_iterator<char>(file), end);
    }
  }
  return texts;
}

/// Values that a field may have by mistake or on purpose.
std::vector<Json> odd_values() {
  return {
      nullptr,
      true,
      false,
      0,
      1,
      -1,
      2,
      3,
      1 << 30,
      std::numeric_limits<int64_t>::max(),
      std::numeric_limits<int64_t>::min(),
      std::numeric_limits<uint64_t>::max(),
      0.0,
      0.5,
      -0.0,
      1e300,
      -1e300,
      1e-300,
      "",
      "default",
      "yarn",
      "longrope",
      "full_attention",
      Json::array(),
      Json::array({1}),
      Json::array({-1, 0.5, nullptr, "x", Json::object()}),
      Json::object(),
      Json::object({{"type", "linear"}, {"factor", 0}}),
      Json::object({{"__float__", "NaN"}})};
}

/// Returns the objects in `value`, itself among them.
void add_objects(Json& value, std::vector<Json*>& objects) {
  if (value.is_object() && !value.empty()) {
    objects.push_back(&value);
  }
  if (value.is_structured()) {
    for (auto& item : value) {
      add_objects(item, objects);
    }
  }
}

} // namespace

TEST_CASE("Configurations that are not as they were written are refused") {
  const auto texts = golden_configs();
  REQUIRE(texts.size() > 200);
  const auto odd = odd_values();
  std::mt19937 engine(1);
  const auto below = [&](size_t n) { return engine() % n; };
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& text : texts) {
      auto config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (config.is_discarded()) {
        // It has Python's NaN or Infinity.
        continue;
      }
      std::string changed;
      for (auto times = 1 + below(3); times > 0; --times) {
        std::vector<Json*> objects;
        add_objects(config, objects);
        if (objects.empty()) {
          break;
        }
        auto& object = *objects[below(objects.size())];
        auto field = object.begin();
        std::advance(field, static_cast<int64_t>(below(object.size())));
        changed += " " + field.key();
        if (below(4) == 0) {
          object.erase(field.key());
        } else {
          field.value() = odd[below(odd.size())];
        }
      }
      auto bytes = config.dump();
      if (below(8) == 0) {
        bytes[below(bytes.size())] = static_cast<char>(engine());
      }
      CAPTURE(bytes, changed);
      CHECK_NOTHROW(fuzz_config(
          reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
    }
  }
}

TEST_CASE("A configuration costs no more than its size explains") {
  const std::string start = R"({"model_type":"gpt2","n_layer":)";
  constexpr int kMany = 240'000;
  SECTION("a long list") {
    check_costs(
        start + "[" + list_of("0", kMany) + "]}",
        "expected an integer as \"n_layer\"");
  }
  SECTION("many lists") {
    check_costs(
        start + "[" + list_of("[]", kMany) + "]}",
        "expected an integer as \"n_layer\"");
  }
  SECTION("many fields") {
    std::string fields;
    for (int i = 0; i < kMany; ++i) {
      fields += "\"f" + std::to_string(i) + "\":0,";
    }
    check_costs("{" + fields + start.substr(1) + "\"x\"}", "n_layer");
  }
  SECTION("one name many times") {
    check_costs(
        "{" + list_of(R"("n_layer":[])", kMany) + R"(,"model_type":"gpt2"})",
        "n_layer");
  }
  SECTION("many numbers that JSON lacks") {
    check_costs(start + "[" + list_of("NaN", kMany / 2) + "]}", "n_layer");
  }
  SECTION("more values than any has") {
    const auto* value = GENERATE("0", "[]", "{}", R"({"":0})", "NaN");
    check_costs(
        start + "[" + list_of(value, 500'000) + "]}",
        "has more than 250000 values");
  }
  SECTION("deep nesting") {
    constexpr size_t kDepth = 2'000'000;
    check_costs(
        start + std::string(kDepth, '[') + std::string(kDepth, ']') + "}",
        "is nested deeper than 64");
  }
  SECTION("a long name of the model") {
    check_costs(
        R"({"model_type":")" + std::string(4'000'000, 'x') + "\"}",
        "model_type");
  }
  SECTION("as many bytes as one may have") {
    check_costs("{" + std::string((4 << 20) - 2, ' ') + "}", "model_type");
  }
  SECTION("more bytes than any has") {
    check_costs(
        "{" + std::string((4 << 20) - 1, ' ') + "}",
        "expected a configuration of at most 4194304 bytes");
  }
}

} // namespace config_test
