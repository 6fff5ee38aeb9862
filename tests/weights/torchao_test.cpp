// join_quantized: tensors of torchao, which a safetensors header describes.

#include <support/temporary_folder.h>
#include <support/test.h>
#include <torch_attention/weights/convert.h>
#include <torch_attention/weights/read.h>
#include <torch_attention/weights/write.h>
#include <weights/quantized/dequantize.h>
#include <weights/read.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace torchao_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::testing;

namespace {

/// The parts of a weight, and its description.
struct Parts {
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  std::string description;
};

/// Returns the file of these parts, joined.
files::WeightFile joined(const Parts& parts, const char* config = nullptr) {
  files::WeightFile file;
  for (const auto& [part, tensor] : parts.tensors) {
    file.tensors.insert("a._weight_" + part, tensor);
  }
  if (!parts.description.empty()) {
    file.metadata["a.weight"] = parts.description;
  }
  file.metadata["tensor_names"] = R"(["a.weight"])";
  REQUIRE(quantized::may_be_quantized(file));
  if (config == nullptr) {
    quantized::join_quantized(file, nullptr);
  } else {
    const auto json = Json::parse(config);
    quantized::join_quantized(file, &json);
  }
  return file;
}

torch::Tensor values(const Parts& parts) {
  const auto file = joined(parts);
  REQUIRE(file.unreadable.empty());
  REQUIRE(
      file.tensors.keys() == std::vector<std::string>{std::string("a.weight")});
  file.stored.fill(file.tensors["a.weight"]);
  return file.tensors["a.weight"].clone();
}

/// Returns why the weight is not read.
std::string refused(const Parts& parts, const char* config = nullptr) {
  const auto file = joined(parts, config);
  REQUIRE(file.unreadable.size() == 1);
  CHECK(file.unreadable.front().first == "a.weight");
  CHECK(file.quantization.refused.count("a.weight") == 1);
  return file.unreadable.front().second;
}

std::string replaced(
    std::string text,
    const std::string& from,
    const std::string& to) {
  const auto place = text.find(from);
  REQUIRE(place != std::string::npos);
  return text.replace(place, from.size(), to);
}

/// int8 [2, 8] in groups of four, of a bfloat16 weight.
Parts int8_parts() {
  return {
      {{"qdata", torch::arange(-8, 8).view({2, 8}).to(torch::kChar)},
       {"scale", torch::tensor({{0.3F, 1.0F}, {2.0F, -0.1F}})},
       {"zero_point", torch::tensor({{1, 0}, {-3, 100}}).to(torch::kChar)}},
      R"({"_type": "Int8Tensor", "_data": {"block_size": [1, 4],
      "dtype": {"_type": "torch.dtype", "_data": "bfloat16"},
      "act_quant_kwargs": null, "reduce_range": false},
      "_tensor_data_names": ["zero_point", "qdata", "scale"]})"};
}

} // namespace

TEST_CASE("torchao's int8 has the dtype of the original weight") {
  const auto parts = int8_parts();
  const auto at = [&](size_t i) {
    return parts.tensors[i].second.to(torch::kFloat);
  };
  const auto expected =
      ((at(0) - at(2).repeat_interleave(4, 1)) * at(1).repeat_interleave(4, 1))
          .to(torch::kBFloat16);
  const auto found = values(parts);
  CHECK(found.scalar_type() == torch::kBFloat16);
  CHECK(found.equal(expected));
  const auto file = joined(parts, R"({"quant_method": "torchao"})");
  CHECK(
      file.stored.find(file.tensors["a.weight"])->form ==
      "torchao's Int8Tensor in groups of 4");
}

TEST_CASE("Float zero points of torchao are rounded to the dtype") {
  auto parts = int8_parts();
  const auto zeros = torch::tensor({{0.3F, -7.77F}, {1.1F, 5.0F}});
  parts.tensors[2].second = zeros;
  parts.description = R"({"_type": "IntxUnpackedToInt8Tensor", "_data": {
      "target_dtype": {"_type": "torch.dtype", "_data": "int4"},
      "block_size": [1, 4],
      "dtype": {"_type": "torch.dtype", "_data": "float16"},
      "activation_quantization": null},
      "_tensor_data_names": ["qdata", "scale", "zero_point"]})";
  const auto half = [](const torch::Tensor& x) { return x.to(torch::kHalf); };
  const auto difference =
      half(parts.tensors[0].second) - half(zeros).repeat_interleave(4, 1);
  const auto expected = half(
      difference.to(torch::kFloat) *
      parts.tensors[1].second.repeat_interleave(4, 1));
  CHECK(values(parts).equal(expected));
  parts.description = replaced(parts.description, "int4", "int9");
  CHECK_THAT(refused(parts), ContainsText("with \"target_dtype\": {"));
}

TEST_CASE("torchao's FP8 may have one scale, and NVFP4 two") {
  const auto weight =
      torch::arange(-8, 8).view({2, 8}).to(torch::kFloat8_e4m3fn);
  const Parts fp8 = {
      {{"qdata", weight}, {"scale", torch::full({1, 1}, 0.3F)}},
      R"({"_type": "Float8Tensor", "_data": {"block_size": [2, 8],
      "mm_config": null, "act_quant_kwargs": {"_type": "x", "_data": {}},
      "dtype": {"_type": "torch.dtype", "_data": "float32"}},
      "_tensor_data_names": ["qdata", "scale"]})"};
  CHECK(values(fp8).equal(weight.to(torch::kFloat) * 0.3F));
  auto wrong = fp8;
  wrong.tensors[1].second = torch::ones({2, 1});
  CHECK_THAT(refused(wrong), ContainsText("has the shape torch.Size([2, 1])"));

  // 0.5 and -6, in the lower and the higher bits of a byte.
  const Parts nvfp4 = {
      {{"qdata", torch::full({1, 16}, 0xF1, torch::kByte)},
       {"scale", torch::tensor({{2.0F, -1.5F}}).to(torch::kFloat8_e4m3fn)},
       {"per_tensor_scale", torch::tensor(0.7F)}},
      R"({"_type": "NVFP4Tensor", "_data": {"block_size": 16,
      "orig_dtype": {"_type": "torch.dtype", "_data": "float32"},
      "is_swizzled_scales": false},
      "_tensor_data_names": ["qdata", "scale", "per_tensor_scale"]})"};
  const auto scales =
      (torch::tensor({2.0F, -1.5F}) * 0.7F).repeat_interleave(16).view({1, 32});
  CHECK(
      values(nvfp4).equal(torch::tensor({0.5F, -6.0F}).repeat({16}) * scales));
}

TEST_CASE("torchao is refused unless description and parts fit") {
  const auto parts = int8_parts();
  const auto described = [&](const char* from, const char* to) {
    auto changed = parts;
    changed.description = replaced(changed.description, from, to);
    return refused(changed);
  };
  CHECK_THAT(
      described("Int8Tensor", "Int4TilePackedTo4dTensor"),
      ContainsText("as Int4TilePackedTo4dTensor, which is not read"));
  CHECK_THAT(
      described("[1, 4]", "[1, 3]"), ContainsText("\"block_size\": [1,3]"));
  CHECK_THAT(
      described("[1, 4]", "[1, 2]"), ContainsText("expected torch.Size"));
  CHECK_THAT(described("bfloat16", "float64"), ContainsText("\"dtype\": {"));
  CHECK_THAT(
      described("\"reduce_range\"", "\"order\""),
      ContainsText("with \"order\": false"));
  CHECK_THAT(
      described("\"scale\"", "\"act_pre_scale\""),
      ContainsText("with a \"act_pre_scale\", which is not read"));
  CHECK_THAT(
      described(", \"scale\"", ""), ContainsText("its description lists"));
  auto missing = parts;
  missing.tensors.erase(missing.tensors.begin() + 1);
  CHECK_THAT(refused(missing), ContainsText("has no \"_weight_scale\""));
  auto undescribed = parts;
  undescribed.description.clear();
  CHECK_THAT(refused(undescribed), ContainsText("does not say how"));
  undescribed.description = "{";
  CHECK_THAT(refused(undescribed), ContainsText("does not say how"));
  CHECK_THAT(
      refused(parts, R"({"quant_method": "fp8"})"),
      ContainsText("has tensors of torchao, but the configuration says"));
}

TEST_CASE("torchao's parts are not converted without their description") {
  const auto parts = int8_parts();
  const TemporaryFolder folder;
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  tensors.insert("b.weight", torch::ones({2}));
  for (const auto& [part, tensor] : parts.tensors) {
    tensors.insert("a._weight_" + part, tensor);
  }
  const auto path = folder.file("model.safetensors");
  write_weights(
      tensors,
      path,
      WriteOptions().metadata({{"a.weight", parts.description}}));
  const auto out = folder.file("out.safetensors");
  for (const std::string prefix : {"", "a"}) {
    INFO(prefix);
    THROWS_WITH(
        convert_weights(path, out, ConvertOptions().prefix(prefix)),
        "is stored by torchao in parts that only the header");
  }
  CHECK_NOTHROW(convert_weights(path, out, ConvertOptions().prefix("b")));
  convert_weights(path, out, ConvertOptions().dequantize(true));
  CHECK(read_weights(out)["a.weight"].equal(values(parts)));
}

TEST_CASE("torchao's parts may be in several files of a model") {
  const auto parts = int8_parts();
  const TemporaryFolder folder;
  std::string map;
  for (size_t i = 0; i < parts.tensors.size(); ++i) {
    const auto key = "a._weight_" + parts.tensors[i].first;
    const auto name = std::to_string(i) + ".safetensors";
    torch::OrderedDict<std::string, torch::Tensor> tensors;
    tensors.insert(key, parts.tensors[i].second);
    write_weights(
        tensors,
        folder.file(name),
        WriteOptions().metadata({{"a.weight", parts.description}}));
    map += (i == 0 ? "" : ",") + ("\"" + key + "\":\"" + name + "\"");
  }
  const auto index = folder.file("model.safetensors.index.json");
  std::ofstream(index) << "{\"weight_map\":{" << map << "}}";
  const auto file = read_weight_file(index);
  REQUIRE(file.tensors.contains("a.weight"));
  file.stored.fill(file.tensors["a.weight"]);
  CHECK(file.tensors["a.weight"].equal(values(parts)));
}

} // namespace torchao_test
