// Weights of real Python classes in their own layouts, and the outputs of the
// classes (tests/golden/generate/layouts).

#include <support/close.h>
#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>
#include <weights/read.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

namespace golden_layouts_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::testing;

namespace {

/// A class with its weights, an input, and the output that it gives.
struct Case {
  std::string name;
  std::map<std::string, std::string> config;
  torch::Tensor input;
  torch::Tensor output;

  std::string path() const {
    return golden("layouts/" + std::string(config.at("file")));
  }
  int64_t number(const std::string& key) const {
    return std::stoll(config.at(key));
  }
  bool flag(const std::string& key) const {
    return config.at(key) == "true";
  }

  MultiHeadAttentionOptions options() const {
    auto result = MultiHeadAttentionOptions(
                      number("d_in"),
                      number("d_out"),
                      number("context_length"),
                      number("num_heads"))
                      .num_kv_heads(number("num_kv_heads"))
                      .qkv_bias(flag("qkv_bias"))
                      .causal(flag("causal"))
                      .out_proj(flag("out_proj"));
    if (!config.at("scale").empty()) {
      result.scale(std::stod(config.at("scale")));
    }
    return result;
  }

  /// The output of a module, which gets the bias of Swin's windows.
  template <typename Attention>
  torch::Tensor output_of(Attention& attention) const {
    ForwardOptions call;
    if (config.count("window") > 0) {
      WindowBias bias(number("num_heads"), number("window"), number("window"));
      const auto table =
          config.at("prefix") + ".self.relative_position_bias_table";
      const torch::NoGradGuard no_grad;
      bias->relative_position_bias_table.copy_(read_weights(path())[table]);
      call.bias(bias());
    }
    return attention->forward(input, call);
  }

  LoadOptions load_options() const {
    auto result = LoadOptions()
                      .prefix(config.at("prefix"))
                      // `SelfAttention_v2` has none.
                      .mask(MaskPolicy::kOptional);
    const auto& layout = config.at("layout");
    // Not found by keys: another layout has them with another meaning.
    if (layout.rfind("value_as_key", 0) == 0) {
      result.layout(WeightLayout::named(layout));
    }
    if (config.count("window") > 0) {
      result.layout(
          WeightLayout::bert().outside("self.relative_position_bias_table"));
    }
    return result;
  }
};

std::map<std::string, std::string> metadata_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof(length));
  std::string header(length, '\0');
  file.read(header.data(), static_cast<std::streamsize>(length));
  return nlohmann::json::parse(header)
      .at("__metadata__")
      .get<std::map<std::string, std::string>>();
}

std::vector<Case> read_cases() {
  const std::string end = ".expected.safetensors";
  std::set<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(golden("layouts"))) {
    const auto name = entry.path().filename().string();
    if (name.size() > end.size() &&
        name.compare(name.size() - end.size(), end.size(), end) == 0) {
      names.insert(name);
    }
  }
  std::vector<Case> cases;
  for (const auto& name : names) {
    const auto tensors = read_weight_file(golden("layouts/" + name)).tensors;
    cases.push_back(
        {name.substr(0, name.size() - end.size()),
         metadata_of(golden("layouts/" + name)),
         tensors["input"].clone(),
         tensors["output"].clone()});
  }
  return cases;
}

} // namespace

TEST_CASE("The weights of real Python classes give these classes' outputs") {
  const auto cases = read_cases();
  CHECK(cases.size() >= 35);
  std::set<std::string> layouts;
  for (const auto& golden : cases) {
    CAPTURE(golden.name);
    MultiHeadAttention attention(golden.options());
    attention->eval();
    const auto report =
        load_weights(*attention, golden.path(), golden.load_options());
    CHECK(report.layout == golden.config.at("layout"));
    layouts.insert(report.layout);
    const auto output = golden.output_of(attention);
    CHECK_THAT(output, IsCloseTo(golden.output, {1e-5, 1e-5}));
  }
  CHECK(layouts.size() == WeightLayout::built_in().size());
}

TEST_CASE("A list of heads takes the weights of classes without projection") {
  size_t count = 0;
  for (const auto& golden : read_cases()) {
    if (golden.flag("out_proj") ||
        golden.number("num_heads") != golden.number("num_kv_heads")) {
      continue;
    }
    CAPTURE(golden.name);
    const auto options = golden.options();
    MultiHeadAttentionWrapper attention(
        MultiHeadAttentionWrapperOptions(
            options.d_in(),
            options.d_out() / options.num_heads(),
            options.context_length(),
            options.num_heads())
            .qkv_bias(options.qkv_bias())
            .causal(options.causal())
            .scale(options.scale())
            .register_mask(options.register_mask()));
    attention->eval();
    load_weights(*attention, golden.path(), golden.load_options());
    CHECK_THAT(
        golden.output_of(attention), IsCloseTo(golden.output, {1e-5, 1e-5}));
    ++count;
  }
  CHECK(count > 3);
}

TEST_CASE("Every layout is written again as its class wrote it") {
  const TemporaryFolder folder;
  for (const auto& golden : read_cases()) {
    CAPTURE(golden.name);
    MultiHeadAttention attention(golden.options());
    load_weights(*attention, golden.path(), golden.load_options());
    const auto path = folder.file("again.safetensors");
    const auto layout = WeightLayout::named(golden.config.at("layout"));
    if (golden.config.at("layout").rfind("value_as_key", 0) == 0) {
      continue; // the class's own keys are not read, and so not known
    }
    save_weights(
        *attention,
        path,
        SaveOptions().layout(layout).num_heads(golden.number("num_heads")));
    MultiHeadAttention again(golden.options());
    load_weights(*again, path, LoadOptions().layout(layout));
    attention->eval();
    again->eval();
    CHECK(golden.output_of(attention).equal(golden.output_of(again)));
  }
}

} // namespace golden_layouts_test
