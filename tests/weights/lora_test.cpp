// LoRA adapters: LoadOptions, ReadOptions, ConvertOptions and PretrainedOptions
// ::adapter. PEFT's rule, W + B A * alpha / r, is computed here by LibTorch.

#include <support/golden.h>
#include <support/pretrained.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <cmath>
#include <fstream>

namespace lora_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;
using Tensors = torch::OrderedDict<std::string, torch::Tensor>;

constexpr int64_t kIn = 12;
constexpr int64_t kRank = 3;

json lora() {
  return {
      {"peft_type", "LORA"},
      {"r", kRank},
      {"lora_alpha", 6},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"init_lora_weights", true},
      {"target_modules", {"q_proj", "v_proj"}}};
}

/// A model of one layer, and an adapter of its queries and values.
struct Model {
  TemporaryFolder folder;
  Tensors base;
  Tensors adapter;
  json config = lora();

  explicit Model(const std::string& root = "model.") {
    torch::manual_seed(1);
    for (const auto* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      base.insert(
          root + "layers.0.self_attn." + name + ".weight",
          torch::randn({kIn, kIn}));
    }
    for (const auto* name : {"q_proj", "v_proj"}) {
      add_update(std::string("model.layers.0.self_attn.") + name, kIn, kIn);
    }
  }

  void add_update(const std::string& module, int64_t in, int64_t out) {
    const auto start = "base_model.model." + module;
    adapter.insert(start + ".lora_A.weight", torch::randn({kRank, in}));
    adapter.insert(start + ".lora_B.weight", torch::randn({out, kRank}));
  }

  std::string path() const {
    return folder.file("model.safetensors");
  }
  std::string adapter_path() const {
    return folder.path();
  }

  /// Writes all files.
  void write() const {
    write_weights(base, path());
    write_weights(adapter, folder.file("adapter_model.safetensors"));
    std::ofstream(folder.file("adapter_config.json")) << config.dump();
  }

  Tensors read(const ReadOptions& options = {}) const {
    write();
    auto with = options;
    return read_weights(path(), with.adapter(adapter_path()));
  }

  torch::Tensor update(const std::string& module) const {
    const auto start = "base_model.model." + module;
    return adapter[start + ".lora_B.weight"].matmul(
        adapter[start + ".lora_A.weight"]);
  }
};

const std::string kQuery = "model.layers.0.self_attn.q_proj";
const std::string kKey = "model.layers.0.self_attn.k_proj";

/// Returns the error of reading an adapter with these fields, or "".
std::string refused(const json& fields) {
  Model model;
  model.config.update(fields);
  try {
    model.read();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

std::string refused(const std::string& field, const json& value) {
  return refused(json{{field, value}});
}

void check_close(const torch::Tensor& a, const torch::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  CHECK(torch::allclose(a, b, /*rtol=*/1e-5, /*atol=*/1e-5));
}

} // namespace

TEST_CASE("An adapter is added to the weights that it changes") {
  const Model model;
  const auto merged = model.read();
  REQUIRE(merged.keys() == model.base.keys());
  const auto& weight = model.base[kQuery + ".weight"];
  check_close(merged[kQuery + ".weight"], weight + model.update(kQuery) * 2);
  CHECK(merged[kKey + ".weight"].equal(model.base[kKey + ".weight"]));
  // Without the option nothing is added.
  CHECK(read_weights(model.path())[kQuery + ".weight"].equal(weight));
}

TEST_CASE("An adapter's weights load into a module") {
  const Model model;
  model.write();
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(kIn, kIn, 8, 2).out_bias(false));
  const auto report = load_weights(
      *attention,
      model.path(),
      LoadOptions()
          .prefix("model.layers.0.self_attn")
          .mask(MaskPolicy::kIgnore)
          .adapter(model.adapter_path()));
  CHECK(report.loaded.front().stored_as == "Float + LoRA of rank 3");
  const auto merged = model.read();
  CHECK(attention->named_parameters()["W_query.weight"].equal(
      merged[kQuery + ".weight"]));
  CHECK(attention->named_parameters()["W_key.weight"].equal(
      model.base[kKey + ".weight"]));
}

TEST_CASE("The scale of an adapter follows its configuration") {
  Model model;
  const auto factor = [&] {
    const auto change =
        model.read()[kQuery + ".weight"] - model.base[kQuery + ".weight"];
    return (change.norm() / model.update(kQuery).norm()).item<double>();
  };
  model.config["use_rslora"] = true;
  CHECK(factor() == Approx(6 / std::sqrt(3.0)).epsilon(1e-4));
  model.config["alpha_pattern"] = {{"self_attn.q_proj", 9}, {"v_proj", 100}};
  CHECK(factor() == Approx(9 / std::sqrt(3.0)).epsilon(1e-4));
  model.config["use_rslora"] = false;
  CHECK(factor() == Approx(3).epsilon(1e-4));
  model.config["r"] = 8;
  THROWS_WITH(model.read(), "the rank 8, but its weights have 3");
  model.config["rank_pattern"] = {{"q_proj", 3}, {"v_proj", 3}};
  CHECK(factor() == Approx(3).epsilon(1e-4));
  model.config["rank_pattern"] = {{"layers\\.0.*", 3}};
  THROWS_WITH(model.read(), "expected the name of a module and a number");
}

TEST_CASE("Transposed weights and other dtypes take adapters") {
  Model model;
  model.base.clear();
  model.adapter.clear();
  model.base.insert(
      "h.0.attn.c_attn.weight", torch::randn({kIn, 3 * kIn}, torch::kBFloat16));
  model.base.insert("wte.weight", torch::randn({7, kIn}, torch::kHalf));
  model.config["target_modules"] = {"c_attn", "c_proj", "wte"};
  model.add_update("transformer.h.0.attn.c_attn", kIn, 3 * kIn);
  const auto start = std::string("base_model.model.transformer.wte");
  model.adapter.insert(start + ".lora_embedding_A", torch::randn({kRank, 7}));
  model.adapter.insert(start + ".lora_embedding_B", torch::randn({kIn, kRank}));
  // PEFT saves the embedding itself, too.
  model.adapter.insert(start + ".base_layer.weight", model.base["wte.weight"]);
  model.config["fan_in_fan_out"] = true;
  const auto merged = model.read();
  check_close(
      merged["h.0.attn.c_attn.weight"],
      model.base["h.0.attn.c_attn.weight"].to(torch::kFloat) +
          model.update("transformer.h.0.attn.c_attn").t() * 2);
  check_close(
      merged["wte.weight"],
      model.base["wte.weight"].to(torch::kFloat) +
          model.adapter[start + ".lora_embedding_B"]
                  .matmul(model.adapter[start + ".lora_embedding_A"])
                  .t() *
              2);
  // Shapes tell the order; for a square weight that of the layer beside it.
  model.config["fan_in_fan_out"] = false;
  const auto square = torch::randn({kIn, kIn});
  model.base.insert("h.0.attn.c_proj.weight", square);
  model.add_update("transformer.h.0.attn.c_proj", kIn, kIn);
  const auto again = model.read();
  CHECK(
      again["h.0.attn.c_attn.weight"].equal(merged["h.0.attn.c_attn.weight"]));
  check_close(
      again["h.0.attn.c_proj.weight"],
      square + model.update("transformer.h.0.attn.c_proj").t() * 2);
  Model other;
  other.config["fan_in_fan_out"] = true;
  THROWS_WITH(other.read(), "is square, and no layer beside it tells");
}

TEST_CASE("Modules of the adapter are found below other paths") {
  for (const std::string root : {"", "language_model.model."}) {
    INFO(root);
    const Model model(root);
    const auto key = root + "layers.0.self_attn.q_proj.weight";
    check_close(model.read()[key], model.base[key] + model.update(kQuery) * 2);
  }
  Model twice;
  twice.base.insert("x." + kKey + ".weight", torch::randn({2, 2}));
  twice.base.insert("y." + kKey + ".weight", torch::randn({2, 2}));
  twice.base.erase(kKey + ".weight");
  twice.add_update(kKey, 2, 2);
  twice.config["target_modules"] = {"q_proj", "k_proj", "v_proj"};
  THROWS_WITH(twice.read(), "of which the file has several");
  Model none;
  none.add_update("model.layers.7.self_attn.q_proj", kIn, kIn);
  THROWS_WITH(
      none.read(),
      "the adapter changes \"model.layers.7.self_attn.q_proj\", of which the "
      "file has no tensor");
}

TEST_CASE("Whole tensors of an adapter replace those of the model") {
  Model model;
  const auto whole = torch::randn({kIn, kIn});
  model.adapter.insert("base_model.model." + kKey + ".weight", whole);
  model.adapter.insert("base_model.model.score.weight", torch::ones({2, kIn}));
  THROWS_WITH(model.read(), "\"score.weight\", which the file does not have");
  model.config["modules_to_save"] = {"score"};
  const auto bias = torch::randn({kIn});
  model.base.insert(kQuery + ".bias", torch::zeros({kIn}));
  model.adapter.insert("base_model.model." + kQuery + ".base_layer.bias", bias);
  const auto merged = model.read();
  CHECK(merged[kQuery + ".bias"].equal(bias));
  CHECK(merged[kKey + ".weight"].equal(whole));
  CHECK(merged["score.weight"].equal(torch::ones({2, kIn})));
  // A larger vocabulary, for example.
  model.adapter["base_model.model." + kKey + ".weight"] = torch::ones({3, 3});
  CHECK(model.read()[kKey + ".weight"].sizes() == torch::IntArrayRef({3, 3}));
}

TEST_CASE("Adapters that are more than W + B A are refused by name") {
  using Catch::Matchers::Equals;
  for (const auto& [field, value] : std::map<std::string, json>{
           {"peft_type", "LOHA"},
           {"use_dora", true},
           {"lora_bias", true},
           {"use_qalora", true},
           {"init_lora_weights", "pissa_niter_4"},
           {"init_lora_weights", "olora"},
           {"layer_replication", {{0, 1}}},
           {"alora_invocation_tokens", {1, 2}},
           {"trainable_token_indices", {1}},
           {"target_parameters", {"experts.w"}},
           {"a_field_of_tomorrow", 1}}) {
    INFO(field);
    CHECK(!refused(field, value).empty());
  }
  for (const auto& [field, value] : std::map<std::string, json>{
           {"init_lora_weights", "gaussian"},
           {"use_dora", false},
           {"layer_replication", nullptr},
           {"runtime_config", {{"ephemeral_gpu_offload", false}}},
           {"a_field_of_tomorrow", nullptr}}) {
    INFO(field);
    CHECK(refused(field, value).empty());
  }
}

TEST_CASE("Modules to which PEFT would not apply the adapter are refused") {
  for (const auto& [field, value] : std::map<std::string, json>{
           {"target_modules", {"v_proj"}},
           {"exclude_modules", {"q_proj"}},
           {"layers_to_transform", {1, 2}}}) {
    INFO(field);
    Model model;
    model.config[field] = value;
    THROWS_WITH(model.read(), "but PEFT would not apply them, by " + field);
  }
  Model model;
  model.config["layers_to_transform"] = 0;
  CHECK_NOTHROW(model.read());
}

TEST_CASE("Texts that select modules are regular expressions") {
  for (const auto* all :
       {"all-linear",
        ".*",
        R"(.*\.(q_proj|v_proj)$)",
        R"(^model\.layers\.\d+\.self_attn\.(?:q|v)_proj)",
        R"((?!.*visual)(?=model\.).*?[qv]_pro[a-z])",
        R"(\bmodel.{1,}(_\w+){1,2})",
        R"([^ ]{31})",
        R"(((.*)*)*j)",
        R"((|model|x)+\.[\d\w._-]*)"}) {
    INFO(all);
    CHECK(refused("target_modules", all).empty());
  }
  for (const auto* not_values :
       {R"(.*\.q_proj)",
        "q_proj|v_proj",
        R"(.*\.(q_proj|o_proj))",
        R"(.*attn\.(?!v).*)",
        R"((?=.*q_).*)",
        R"([^v]+)",
        R"((.*v_proj)(x|yy)*$x)",
        R"(.{32,})"}) {
    INFO(not_values);
    CHECK_THAT(
        refused("target_modules", not_values),
        ContainsText("but PEFT would not apply them, by target_modules"));
  }
  for (const auto* unknown :
       {"(?i).*",
        "(?<=a).*",
        R"(\Amodel.*)",
        R"((.)\1*)",
        ".*+",
        "x{2",
        ".{2000}",
        "(",
        ".*)",
        "[",
        "[[a]",
        "*",
        "\n"}) {
    INFO(unknown);
    CHECK_THAT(
        refused("target_modules", unknown), ContainsText("is not understood"));
  }
  const auto slow = std::string(40, '(') + ".{1000}" + [] {
    std::string rest;
    for (int i = 0; i < 40; ++i) {
      rest += "|){1000}";
    }
    return rest;
  }();
  CHECK_THAT(
      refused("target_modules", slow), ContainsText("it takes too long"));
  CHECK_THAT(
      refused("exclude_modules", R"(.*v_proj)"),
      ContainsText("by exclude_modules"));
  CHECK(refused("exclude_modules", R"(.*k_proj)").empty());
}

TEST_CASE("Layers of an adapter are found as PEFT finds them") {
  const auto* by_layers = "by layers_to_transform";
  const json first = {{"layers_to_transform", {0}}};
  const auto with = [](json config, const char* field, const json& value) {
    config[field] = value;
    return config;
  };
  for (const json& pattern :
       {json("layers"), json({"h", "layers"}), json("")}) {
    CHECK(refused(with(first, "layers_pattern", pattern)).empty());
  }
  CHECK_THAT(
      refused({{"layers_to_transform", 1}, {"layers_pattern", "layers"}}),
      ContainsText(by_layers));
  CHECK_THAT(
      refused(with(first, "layers_pattern", "h")), ContainsText(by_layers));
  CHECK_THAT(
      refused(with(first, "layers_pattern", ".*")),
      ContainsText("expected the names of lists of layers"));
  CHECK_THAT(
      refused(with(first, "target_modules", ".*")),
      ContainsText("which PEFT refuses"));
  // A whole path is taken in any layer.
  CHECK(
      refused({{"layers_to_transform", {7}},
               {"target_modules", {kQuery, "model.layers.0.self_attn.v_proj"}}})
          .empty());
  // Versions of PEFT take the first or the last number.
  for (const auto& [layers, applies] : std::vector<std::pair<json, bool>>{
           {json::array({0}), false}, {json::array({0, 3}), true}}) {
    Model model;
    const auto* expert = "model.layers.0.experts.3.w1";
    model.base.insert(std::string(expert) + ".weight", torch::randn({kIn, 4}));
    model.adapter.clear();
    model.add_update(expert, 4, kIn);
    model.config["target_modules"] = {"w1"};
    model.config["layers_to_transform"] = layers;
    if (applies) {
      CHECK_NOTHROW(model.read());
    } else {
      THROWS_WITH(model.read(), by_layers);
    }
  }
  // Without a number of a layer nothing is applied.
  Model model;
  model.base.insert("model.head.weight", torch::randn({kIn, kIn}));
  model.add_update("model.head", kIn, kIn);
  model.config["target_modules"] = {"q_proj", "v_proj", "head"};
  CHECK_NOTHROW(model.read());
  model.config["layers_to_transform"] = {0};
  THROWS_WITH(model.read(), by_layers);
}

TEST_CASE("Matrices within a module that the adapter has whole are refused") {
  Model model;
  model.config["modules_to_save"] = {"self_attn"};
  THROWS_WITH(model.read(), "PEFT would not apply them, by modules_to_save");
}

TEST_CASE("Two modules of an adapter are not added to one weight") {
  Model model("");
  model.config["target_modules"] = {"q_proj", "v_proj"};
  model.add_update("model.vision.layers.0.self_attn.q_proj", kIn, kIn);
  THROWS_WITH(model.read(), "but other modules have another beginning there");
}

TEST_CASE("Whole modules of an adapter are found below other paths") {
  Model model;
  model.adapter.clear();
  const auto whole = torch::randn({kIn, kIn});
  model.adapter.insert(
      "base_model.model.layers.0.self_attn.q_proj.weight", whole);
  model.config["modules_to_save"] = {"q_proj"};
  const auto merged = model.read();
  CHECK(merged.keys() == model.base.keys());
  CHECK(merged[kQuery + ".weight"].equal(whole));
}

TEST_CASE("Dots in patterns of ranks and alphas stand for any character") {
  Model model;
  model.config["alpha_pattern"] = {{"self.attn.q_proj", 12}};
  const auto merged = model.read();
  check_close(
      merged[kQuery + ".weight"],
      model.base[kQuery + ".weight"] + model.update(kQuery) * 4);
}

TEST_CASE("Faulty files of adapters are errors") {
  const auto fails_with = [](const std::string& key,
                             const torch::Tensor& tensor,
                             const std::string& text) {
    Model model;
    model.adapter.insert(key, tensor);
    THROWS_WITH(model.read(), text);
  };
  const auto start = "base_model.model." + kKey;
  const auto any = torch::ones({2, 2});
  fails_with("model.x", any, "expected keys that begin with");
  fails_with(start + ".lora_A.weight", any, "expected matrices A (rank, in)");
  fails_with(
      start + ".lora_A.weight", torch::ones({2}), "expected a floating-point");
  fails_with(
      start + ".lora_magnitude_vector.weight", any, "is not merged: only");
  fails_with(start + ".lora_A.default.weight", any, "is not merged: only");
  Model wrong;
  wrong.config["target_modules"] = "all-linear";
  wrong.add_update(kKey, kIn + 1, kIn);
  THROWS_WITH(wrong.read(), "do not fit");
  Model missing;
  missing.write();
  THROWS_WITH(
      read_weights(missing.path(), ReadOptions().adapter("/nowhere")),
      "expected \"adapter_model.safetensors\" or");
}

TEST_CASE("attention_from_pretrained merges an adapter") {
  const Changed model("llama", config_of("llama"));
  const auto options = PretrainedOptions();
  const auto before = attention_from_pretrained(model.path(), 0, options);
  const auto weight = before->named_parameters()["W_query.weight"];
  const TemporaryFolder folder;
  Tensors adapter;
  const auto start =
      std::string("base_model.model.model.layers.0.self_attn.q_proj");
  const auto a = torch::randn({kRank, weight.size(1)});
  const auto b = torch::randn({weight.size(0), kRank});
  adapter.insert(start + ".lora_A.weight", a);
  adapter.insert(start + ".lora_B.weight", b);
  write_weights(adapter, folder.file("adapter_model.safetensors"));
  std::ofstream(folder.file("adapter_config.json")) << lora().dump();
  const auto after = attention_from_pretrained(
      model.path(), 0, PretrainedOptions().adapter(folder.path()));
  check_close(
      after->named_parameters()["W_query.weight"].detach(),
      weight.detach() + b.matmul(a) * 2);
  CHECK(after->named_parameters()["W_key.weight"].equal(
      before->named_parameters()["W_key.weight"]));
}

} // namespace lora_test
