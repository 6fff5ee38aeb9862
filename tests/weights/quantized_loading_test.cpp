// Quantized weights in modules: load_weights, read_weights, convert_weights and
// inspect_weights of files whose values are computed as they are read. Values
// of each form are compared by random_quantized.py and random_gguf.py.

#include <support/temporary_folder.h>
#include <support/test.h>

#include <weights/files/weight_file.h>
#include <weights/quantized/dequantize.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace quantized_loading_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Tensors = torch::OrderedDict<std::string, torch::Tensor>;

constexpr int64_t kSize = 8;
const std::string kPath = "model.layers.0.self_attn";

/// A layer of FP8 weights with a scale each, and its true values.
struct Layer {
  TemporaryFolder folder;
  Tensors stored;
  Tensors values;

  Layer() {
    torch::manual_seed(3);
    for (const auto* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      const auto key = kPath + "." + name + ".weight";
      const auto weight =
          torch::randn({kSize, kSize}).to(torch::kFloat8_e4m3fn);
      const auto scale = torch::rand({1});
      stored.insert(key, weight);
      stored.insert(kPath + "." + name + ".weight_scale", scale);
      values.insert(key, weight.to(torch::kFloat) * scale);
    }
    set_method("modelopt");
  }

  void set_method(const std::string& method) const {
    std::ofstream(folder.file("config.json"))
        << R"({"quantization_config": {"quant_method": ")" << method
        << R"(", "quant_algo": "FP8"}})";
  }

  std::string path() const {
    const auto path = folder.file("model.safetensors");
    write_weights(stored, path);
    return path;
  }
};

MultiHeadAttention module_of_size() {
  return MultiHeadAttention(
      MultiHeadAttentionOptions(kSize, kSize, 4, 2).out_bias(false));
}

std::vector<std::string> sorted_keys(const Tensors& tensors) {
  auto keys = tensors.keys();
  std::sort(keys.begin(), keys.end());
  return keys;
}

LoadOptions options() {
  return LoadOptions().prefix(kPath).mask(MaskPolicy::kIgnore);
}

} // namespace

TEST_CASE("Quantized weights load into a module, which the report tells") {
  const Layer layer;
  auto attention = module_of_size();
  const auto report = load_weights(*attention, layer.path(), options());
  const auto loaded = attention->named_parameters();
  CHECK(loaded["W_query.weight"].equal(layer.values[kPath + ".q_proj.weight"]));
  CHECK(
      loaded["out_proj.weight"].equal(layer.values[kPath + ".o_proj.weight"]));
  CHECK(report.unexpected.empty());
  CHECK(report.loaded.front().stored_as.find("FP8") == 0);
  std::ostringstream text;
  text << report;
  CHECK_THAT(text.str(), ContainsText("FP8"));
  CHECK_THAT(text.str(), ContainsText("-> Float"));
}

TEST_CASE("Quantized weights load in other dtypes and on other devices") {
  const Layer layer;
  auto attention = module_of_size();
  load_weights(*attention, layer.path(), options().dtype(torch::kBFloat16));
  CHECK(attention->named_parameters()["W_value.weight"].equal(
      layer.values[kPath + ".v_proj.weight"].to(torch::kBFloat16)));
}

TEST_CASE("dequantize(false) refuses quantized weights, and changes nothing") {
  const Layer layer;
  auto attention = module_of_size();
  const auto before = attention->W_query->weight.detach().clone();
  THROWS_WITH(
      load_weights(*attention, layer.path(), options().dequantize(false)),
      "form mismatch for W_query.weight: the file has its values as FP8");
  CHECK(attention->W_query->weight.equal(before));
}

TEST_CASE("Weights of an unknown method are refused, strict or not") {
  const Layer layer;
  layer.set_method("some_method");
  auto attention = module_of_size();
  for (const bool strict : {true, false}) {
    THROWS_WITH(
        load_weights(*attention, layer.path(), options().strict(strict)),
        "is quantized by \"some_method\"");
  }
}

TEST_CASE("Numbers of a byte beside a scale of an unknown name are refused") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors");
  const auto codes = torch::randn({4, 4}).to(torch::kFloat8_e4m3fn);
  for (const auto& [weight, scale] :
       std::vector<std::pair<std::string, std::string>>{
           {"attn.in_proj_weight", "attn.in_proj_weight_scale"},
           {"q_proj.weight", "q_proj.scale_weight"},
           {"q_proj.weight", "q_proj.weight_scales"}}) {
    INFO(scale);
    Tensors tensors;
    tensors.insert(weight, codes);
    tensors.insert(scale, torch::ones({1}));
    write_weights(tensors, path);
    THROWS_WITH(
        read_weights(path, ReadOptions().dequantize(true)),
        "\"" + weight + "\" is ");
  }
  // Without scales these are the values.
  Tensors plain;
  plain.insert("q_proj.weight", codes);
  write_weights(plain, path);
  CHECK(
      read_weights(path, ReadOptions().dequantize(true))["q_proj.weight"]
          .scalar_type() == torch::kFloat8_e4m3fn);
}

TEST_CASE("Quantized weights in parts that are computed are refused") {
  weights::files::WeightFile file;
  weights::files::StoredValues values;
  values.form = "test";
  values.shape = {4, 4};
  values.dtype = torch::kChar;
  file.tensors.insert("a.weight", file.stored.add(std::move(values)));
  file.tensors.insert("a.SCB", torch::ones({4}));
  weights::quantized::join_quantized(file, nullptr);
  REQUIRE(file.unreadable.size() == 1);
  CHECK(file.unreadable.front().first == "a.weight");
  CHECK_THAT(
      file.unreadable.front().second,
      ContainsText("is stored as test, which is not joined"));
}

TEST_CASE("A configuration that cannot be read is an error") {
  const Layer layer;
  std::ofstream(layer.folder.file("config.json")) << "{,}";
  auto attention = module_of_size();
  THROWS_WITH(load_weights(*attention, layer.path(), options()), "config.json");
  // Settings of the text model count.
  std::ofstream(layer.folder.file("config.json"))
      << R"({"text_config": {"quantization_config": {"quant_method": "x"}}})";
  THROWS_WITH(
      load_weights(*attention, layer.path(), options()),
      "is quantized by \"x\"");
}

TEST_CASE("read_weights returns what is stored, or the values") {
  const Layer layer;
  const auto stored = read_weights(layer.path());
  CHECK(sorted_keys(stored) == sorted_keys(layer.stored));
  for (const bool mmap : {false, true}) {
    const auto values =
        read_weights(layer.path(), ReadOptions().mmap(mmap).dequantize(true));
    REQUIRE(sorted_keys(values) == sorted_keys(layer.values));
    for (const auto& item : values) {
      CHECK(item.value().equal(layer.values[item.key()]));
    }
  }
  const auto key = kPath + ".k_proj.weight";
  const auto half = read_weights(
      layer.path(), ReadOptions().dequantize(true).dtype(torch::kHalf));
  CHECK(half[key].equal(layer.values[key].to(torch::kHalf)));
}

TEST_CASE("convert_weights writes what is stored, or the values") {
  const Layer layer;
  const auto out = layer.folder.file("out.pt");
  convert_weights(layer.path(), out);
  CHECK(sorted_keys(read_weights(out)) == sorted_keys(layer.stored));
  const auto converted =
      convert_weights(layer.path(), out, ConvertOptions().dequantize(true));
  REQUIRE(sorted_keys(converted.tensors) == sorted_keys(layer.values));
  // Computed values are given back.
  CHECK(converted.tensors[kPath + ".k_proj.weight"].is_meta());
  const auto values = read_weights(out);
  REQUIRE(sorted_keys(values) == sorted_keys(layer.values));
  for (const auto& item : values) {
    CHECK(item.value().equal(layer.values[item.key()]));
  }
}

TEST_CASE("What weights are computed from is not written in another dtype") {
  const Layer layer;
  const auto path = layer.path();
  const auto out = layer.folder.file("out.safetensors");
  const std::string reason = "is stored quantized, and dtype (--dtype) would";
  THROWS_WITH(read_weights(path, ReadOptions().dtype(torch::kFloat)), reason);
  THROWS_WITH(
      convert_weights(path, out, ConvertOptions().dtype(torch::kFloat)),
      reason);
  THROWS_WITH(
      convert_weights(path, out, ConvertOptions().target(WeightLayout::book())),
      "is stored quantized, and target (--layout) would");
  convert_weights(
      path, out, ConvertOptions().dtype(torch::kHalf).dequantize(true));
  const auto key = kPath + ".k_proj.weight";
  CHECK(read_weights(out)[key].equal(layer.values[key].to(torch::kHalf)));
  // FP8 without scales are values.
  Tensors plain;
  plain.insert("weight", torch::ones({2, 2}).to(torch::kFloat8_e4m3fn));
  const TemporaryFolder other;
  const auto plain_path = other.file("plain.safetensors");
  write_weights(plain, plain_path);
  CHECK(read_weights(plain_path, ReadOptions().dtype(torch::kFloat))["weight"]
            .equal(torch::ones({2, 2})));
}

TEST_CASE("inspect_weights tells the form and the bytes of quantized weights") {
  const Layer layer;
  const auto info = inspect_weights(layer.path());
  REQUIRE(info.tensors.size() == 4);
  CHECK(info.tensors.front().stored_as.find("FP8") == 0);
  CHECK(info.tensors.front().bytes == kSize * kSize + sizeof(float));
  REQUIRE(info.attention.size() == 1);
  CHECK(info.attention.front().d_in() == kSize);
}

TEST_CASE("The values of one stored tensor are in memory at a time") {
  weights::files::StoredTensors tensors;
  int64_t decoded = 0;
  const auto make = [&](float value) {
    weights::files::StoredValues values;
    values.form = "test";
    values.shape = {2, 3};
    values.decode = weights::files::floats_by([value, &decoded](float* to) {
      ++decoded;
      std::fill(to, to + 6, value);
    });
    return tensors.add(std::move(values));
  };
  const auto a = make(1);
  const auto b = make(2);
  const auto row = a[1];
  CHECK(tensors.find(row)->form == "test");
  CHECK(tensors.find(torch::ones(1)) == nullptr);
  tensors.fill(row);
  tensors.fill(a);
  CHECK(decoded == 1);
  CHECK(a.equal(torch::full({2, 3}, 1.0F)));
  tensors.release(row);
  tensors.fill(b);
  tensors.fill(row);
  CHECK(decoded == 3);
  CHECK(row.equal(torch::ones(3)));
  CHECK(b.equal(torch::full({2, 3}, 2.0F)));
}

TEST_CASE("Stored tensors of impossible sizes are errors") {
  weights::files::StoredTensors tensors;
  const auto add = [&](std::vector<int64_t> shape) {
    weights::files::StoredValues values;
    values.form = "test";
    values.shape = std::move(shape);
    return tensors.add(std::move(values));
  };
  CHECK(add({0, 3}).numel() == 0);
  CHECK_THROWS_AS(add({int64_t{1} << 40, int64_t{1} << 40}), c10::Error);
  CHECK_THROWS_AS(add({int64_t{1} << 60}), c10::Error);
  CHECK_THROWS_AS(add({-1}), c10::Error);
}

} // namespace quantized_loading_test
