// join_quantized: tensors that together are one quantized weight.

#include <support/test.h>
#include <weights/quantized/dequantize.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace quantized_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::testing;

namespace {

using Items = std::vector<std::pair<std::string, torch::Tensor>>;

/// A file with these tensors, joined by a configuration.
class Joined {
 public:
  explicit Joined(const Items& items, const char* config = nullptr) {
    for (const auto& [key, tensor] : items) {
      file_.tensors.insert(key, tensor);
    }
    file_.check = [this](const std::vector<std::string>& keys) {
      checked_ = keys;
    };
    if (config == nullptr) {
      quantized::join_quantized(file_, nullptr);
    } else {
      const auto json = Json::parse(config);
      quantized::join_quantized(file_, &json);
    }
  }
  Joined(const Joined&) = delete;
  Joined& operator=(const Joined&) = delete;
  Joined(Joined&&) = delete;
  Joined& operator=(Joined&&) = delete;
  ~Joined() = default;

  const files::WeightFile& file() const {
    return file_;
  }

  /// The reason why the only refused weight is not read; "" if all are.
  std::string reason() const {
    return file_.unreadable.empty() ? "" : file_.unreadable.front().second;
  }

  std::string form(const std::string& key = "weight") const {
    const auto* stored = file_.stored.find(file_.tensors[key]);
    return stored == nullptr ? "not stored" : stored->form;
  }

  /// The values of a joined weight.
  torch::Tensor values(const std::string& key = "weight") const {
    const auto tensor = file_.tensors[key];
    file_.stored.fill(tensor);
    return tensor.clone();
  }

  std::vector<std::string> checked(const std::string& key) const {
    file_.check({key});
    return checked_;
  }

 private:
  files::WeightFile file_;
  std::vector<std::string> checked_;
};

torch::Tensor ints(torch::IntArrayRef shape, int64_t value = 0) {
  return torch::full(shape, value, torch::kInt);
}

torch::Tensor text(const std::string& content) {
  auto tensor =
      torch::empty({static_cast<int64_t>(content.size())}, torch::kByte);
  std::memcpy(tensor.data_ptr(), content.data(), content.size());
  return tensor;
}

torch::Tensor fp8(torch::IntArrayRef shape) {
  return torch::ones(shape).to(torch::kFloat8_e4m3fn);
}

const char* const kGptq =
    R"({"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": false})";
const char* const kAwq = R"({"quant_method": "awq", "bits": 4})";

/// GPTQ of 4 bits: a weight [8, 16] in two groups.
Items gptq_items() {
  return {
      {"qweight", ints({2, 8}, 0x76543210)},
      {"qzeros", ints({2, 1}, 0x01111111)},
      {"scales", torch::full({2, 8}, 0.5, torch::kHalf)},
      {"g_idx", torch::arange(16).div(8, "floor").to(torch::kInt)}};
}

/// Replaces a tensor, or adds it.
Items with(Items items, const std::string& key, const torch::Tensor& tensor) {
  for (auto& item : items) {
    if (item.first == key) {
      item.second = tensor;
      return items;
    }
  }
  items.emplace_back(key, tensor);
  return items;
}

Items without(const Items& items, const std::string& key) {
  Items rest;
  for (const auto& item : items) {
    if (item.first != key) {
      rest.push_back(item);
    }
  }
  return rest;
}

/// The reason why these are not read.
std::string refused(const Items& items, const char* config = nullptr) {
  const Joined joined(items, config);
  for (const auto& [key, tensor] : items) {
    // All of them are still there.
    REQUIRE(joined.file().tensors.contains(key));
  }
  return joined.reason();
}

} // namespace

TEST_CASE("A joined weight takes the place of its first tensor") {
  const auto bias = torch::ones({2});
  const Joined joined({
      {"first", torch::ones({1})},
      {"a.weight_scale_inv", torch::full({1, 1}, 2.0)},
      {"a.bias", bias},
      {"a.weight", fp8({2, 3})},
      {"a.input_scale", torch::ones({1})},
      {"b.weight", torch::ones({2})},
  });
  CHECK(
      joined.file().tensors.keys() ==
      std::vector<std::string>{"first", "a.weight", "a.bias", "b.weight"});
  CHECK(joined.file().tensors["a.weight"].scalar_type() == torch::kFloat);
  CHECK(joined.values("a.weight").equal(torch::full({2, 3}, 2.0)));
  CHECK(joined.form("a.weight") == "FP8 in one block");
  CHECK(joined.form("b.weight") == "not stored");
  const auto* stored =
      joined.file().stored.find(joined.file().tensors["a.weight"]);
  REQUIRE(stored != nullptr);
  CHECK(stored->bytes == 4 + 6 + 4);
  CHECK(
      joined.checked("a.weight") ==
      std::vector<std::string>{
          "a.weight_scale_inv", "a.weight", "a.input_scale"});
  CHECK(joined.checked("a.bias") == std::vector<std::string>{"a.bias"});
  CHECK(joined.reason().empty());
}

TEST_CASE("Tensors that are not quantized stay") {
  const Joined joined(
      {{"a.weight", torch::ones({2}, torch::kBFloat16)},
       {"b.weight", fp8({2, 2})},
       {"c.scale", torch::ones({2})},
       {"weight", torch::ones({2}, torch::kInt)},
       {"codes", torch::ones({2})}});
  CHECK(joined.file().tensors.size() == 5);
  CHECK(joined.file().stored.empty());
  CHECK(joined.reason().empty());
}

TEST_CASE("FP8 is read if the size of its blocks is sure") {
  const auto scale = [](torch::IntArrayRef shape) {
    return torch::full(shape, 0.5, torch::kBFloat16);
  };
  const Items blocks = {
      {"weight", fp8({129, 130})}, {"weight_scale_inv", scale({2, 2})}};
  const auto* fp8_alone = R"({"quant_method": "fp8"})";
  CHECK(Joined(blocks, fp8_alone).form() == "FP8 in blocks of 128 x 128");
  CHECK(Joined(blocks, fp8_alone).values().equal(torch::full({129, 130}, 0.5)));
  // Blocks of 100, too, would be two in each row and column.
  CHECK_THAT(refused(blocks), ContainsText("which is not one scale"));
  const Items whole = {
      {"weight", fp8({256, 128})}, {"weight_scale_inv", scale({2, 1})}};
  CHECK(Joined(whole).form() == "FP8 in blocks of 128 x 128");
  const auto* size =
      R"({"quant_method": "fp8", "weight_block_size": [128, 65]})";
  CHECK(Joined(blocks, size).form() == "FP8 in blocks of 128 x 65");
  CHECK_THAT(
      refused(
          blocks, R"({"quant_method": "fp8", "weight_block_size": [64, 65]})"),
      ContainsText("which is not one scale, one for each row, or one for each "
                   "block of 64 x 65"));
  CHECK_THAT(
      refused(
          blocks, R"({"quant_method": "fp8", "weight_block_size": [0, 65]})"),
      ContainsText("expected two positive integers"));
  CHECK_THAT(
      refused(blocks, R"({"quant_method": "fp8", "weight_block_size": null})"),
      ContainsText("is not one scale or one for each row"));
  CHECK_THAT(
      refused(with(blocks, "weight_scale_inv", scale({2, 3}))),
      ContainsText("has the shape torch.Size([2, 3])"));
  CHECK_THAT(
      refused(without(blocks, "weight_scale_inv"), size),
      ContainsText("has no \"weight_scale_inv\""));
}

TEST_CASE("FP8 with unexpected scales is refused") {
  const Items items = {
      {"weight", fp8({4, 4})}, {"weight_scale", torch::ones({4, 1})}};
  CHECK(Joined(items).form() == "FP8 in rows");
  CHECK(
      Joined(items, R"({"quant_method": "fbgemm_fp8"})").form() ==
      "FP8 in rows");
  CHECK_THAT(
      refused(items, R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})"),
      ContainsText("\"modelopt\" as \"nvfp4\""));
  CHECK_THAT(
      refused(items, kGptq),
      ContainsText("has tensors of FP8, but the configuration says that it is "
                   "quantized by \"gptq\""));
  CHECK_THAT(
      refused(items, R"({"quant_method": "quark"})"),
      ContainsText("is quantized by \"quark\", which is not read"));
  CHECK_THAT(
      refused(with(items, "weight_scale", ints({4, 1}))),
      ContainsText("\"weight_scale\" is Int"));
  CHECK_THAT(
      refused(
          with(items, "weight_scale", torch::ones({4, 1}).to(torch::kByte))),
      ContainsText("\"scale_fmt\": \"ue8m0\""));
  CHECK_THAT(
      refused(with(items, "weight_scale_2", torch::ones({}))),
      ContainsText("has a \"weight_scale_2\", which is not expected"));
  CHECK_THAT(
      refused(with(items, "weight", fp8({1, 1}).expand({4, 1 << 30}))),
      ContainsText("is not contiguous"));
  CHECK_THAT(
      refused(with(items, "weight", fp8({0, 4}))),
      ContainsText("has the shape torch.Size([0, 4])"));
  CHECK_THAT(
      refused(with(items, "weight", fp8({2, 2, 4}))),
      ContainsText("expected two dimensions"));
}

TEST_CASE("GPTQ subtracts zeros that are stored minus one") {
  const auto row = torch::arange(16).remainder(8).to(torch::kFloat);
  const auto zeros = [](float most, float last) {
    auto values = torch::full({8, 1}, most);
    values[7][0] = last;
    return values;
  };
  const Joined joined(gptq_items(), kGptq);
  CHECK(joined.form() == "GPTQ of 4 bits");
  CHECK(joined.values().equal((row - zeros(2, 1)) * 0.5));
  const auto* v2 =
      R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"})";
  CHECK(Joined(gptq_items(), v2).values().equal((row - zeros(1, 0)) * 0.5));
  // The configuration of AutoGPTQ.
  const auto* old = R"({"bits": 4, "group_size": 8, "desc_act": true})";
  CHECK(Joined(gptq_items(), old).values().equal((row - zeros(2, 1)) * 0.5));
  CHECK(Joined(without(gptq_items(), "g_idx"), kGptq)
            .values()
            .equal((row - zeros(2, 1)) * 0.5));
}

TEST_CASE("A zero of 0 borrows from its neighbour in version 1 of GPTQ") {
  // Zeros 0, 5, 0, 1, 0, 0, 15 and 0, from the lowest bits on, less 0x11111111.
  const auto zeros =
      torch::tensor({0, 5, 0, 1, 0, 0, 15, 0}, torch::kFloat).unsqueeze(1);
  const auto stored = static_cast<int32_t>(0x0F001050U - 0x11111111U);
  const auto row = torch::arange(16).remainder(8).to(torch::kFloat);
  const auto items = with(gptq_items(), "qzeros", ints({2, 1}, stored));
  CHECK(Joined(items, kGptq).values().equal((row - zeros) * 0.5));
}

TEST_CASE("GPTQ is refused unless everything fits together") {
  const auto items = gptq_items();
  CHECK_THAT(refused(items), ContainsText("there is no configuration"));
  const auto reason = [&](const std::string& key, const torch::Tensor& tensor) {
    return refused(with(items, key, tensor), kGptq);
  };
  for (const int64_t wrong : {-1, 2, std::numeric_limits<int>::max()}) {
    auto indices = items[3].second.clone();
    indices[7] = wrong;
    CHECK_THAT(reason("g_idx", indices), ContainsText("\"g_idx\" has a value"));
  }
  CHECK_THAT(reason("g_idx", ints({15})), ContainsText("expected torch.Size"));
  CHECK_THAT(reason("qzeros", ints({3, 1})), ContainsText("do not fit"));
  CHECK_THAT(reason("qzeros", ints({2, 5})), ContainsText("2, 3, 4 or 8 bits"));
  CHECK_THAT(reason("qzeros", ints({2, 2})), ContainsText("with 8 bits, but"));
  CHECK_THAT(reason("qweight", ints({2, 7})), ContainsText("do not fit"));
  CHECK_THAT(reason("qweight", ints({0, 8})), ContainsText("has the shape"));
  CHECK_THAT(
      reason("scales", torch::ones({2, 8}, torch::kDouble)),
      ContainsText("\"scales\" is Double"));
  CHECK_THAT(
      reason("weight", torch::ones({2})),
      ContainsText("there is a tensor of this name"));
  CHECK_THAT(
      refused(without(items, "qzeros"), kGptq),
      ContainsText("has no \"qzeros\""));
  CHECK_THAT(
      refused(
          items, R"({"quant_method": "gptq", "checkpoint_format": "gptq_p"})"),
      ContainsText("in the format \"gptq_p\""));
  CHECK_THAT(
      refused(
          without(items, "g_idx"),
          R"({"quant_method": "gptq", "bits": 4, "group_size": 4})"),
      ContainsText("do not fit the configuration"));
}

TEST_CASE("AWQ of the version gemm is read") {
  // Columns 0, 2, 4, 6, 1, 3, 5 and 7 of the file have 0 to 7.
  const Items items = {
      {"qweight", ints({4, 1}, 0x76543210)},
      {"qzeros", ints({2, 1}, 0x11111111)},
      {"scales", torch::ones({2, 8}, torch::kHalf)}};
  const auto expected =
      torch::tensor({0, 4, 1, 5, 2, 6, 3, 7}, torch::kFloat).unsqueeze(1) - 1;
  const Joined joined(items, kAwq);
  CHECK(joined.form() == "AWQ of 4 bits");
  CHECK(joined.values().equal(expected.expand({8, 4})));
  const auto* of_autoawq =
      R"({"zero_point": true, "q_group_size": 2, "w_bit": 4, "version": "GEMM"})";
  CHECK(Joined(items, of_autoawq).values().equal(expected.expand({8, 4})));
  const auto reason = [&](const char* config) {
    return refused(items, config);
  };
  CHECK_THAT(
      reason(R"({"quant_method": "awq", "version": "gemv"})"),
      ContainsText("version \"gemv\", which is not read"));
  CHECK_THAT(
      reason(R"({"quant_method": "awq", "bits": 8})"),
      ContainsText("with 8 bits"));
  CHECK_THAT(
      reason(R"({"quant_method": "awq", "group_size": 4})"),
      ContainsText("do not fit groups of 4"));
  CHECK_THAT(
      reason(R"({"quant_method": "awq", "zero_point": false})"),
      ContainsText("without zero points"));
  CHECK_THAT(
      reason(R"({"quant_method": "awq", "bits": "4"})"),
      ContainsText("expected an integer"));
  CHECK_THAT(
      refused(with(items, "scales", torch::ones({3, 8})), kAwq),
      ContainsText("do not fit together"));
}

TEST_CASE("compressed-tensors are read by the scheme that fits") {
  const Items items = {
      {"weight_packed", ints({2, 1}, 0x76543210)},
      {"weight_scale", torch::full({2, 2}, 2.0, torch::kBFloat16)},
      {"weight_shape", torch::tensor({2, 8})}};
  const auto* config = R"({"quant_method": "compressed-tensors",
      "format": "pack-quantized", "config_groups": {"group_0": {"weights":
      {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 4}}}})";
  const Joined joined(items, config);
  CHECK(joined.form() == "compressed-tensors of 4 bits in groups of 4");
  CHECK(joined.values().equal(
      ((torch::arange(8) - 8) * 2).to(torch::kFloat).expand({2, 8})));
  CHECK_THAT(
      refused(with(items, "weight_shape", torch::tensor({2, 9})), config),
      ContainsText("does not hold the shape torch.Size([2, 9])"));
  CHECK_THAT(
      refused(
          with(
              items,
              "weight_shape",
              torch::tensor({int64_t{2}, std::numeric_limits<int64_t>::max()})),
          config),
      ContainsText("too many elements"));
  CHECK_THAT(
      refused(with(items, "weight_scale", torch::ones({2, 1})), config),
      ContainsText("expected torch.Size([2, 2])"));
  const auto index = torch::tensor({1, 0, 0, 1, 1, 0, 1, 0}, torch::kInt);
  const auto by_group = torch::tensor({{1.0F, 2.0F}}).expand({2, 2});
  const auto ordered = with(
      with(items, "weight_g_idx", index), "weight_scale", by_group.clone());
  CHECK(Joined(ordered, config)
            .values()
            .equal(((torch::arange(8) - 8) * (index + 1))
                       .to(torch::kFloat)
                       .expand({2, 8})));
  CHECK(Joined(with(items, "weight_g_idx", ints({8}, -1)), config)
            .values()
            .equal(joined.values()));
  CHECK_THAT(
      refused(with(items, "weight_g_idx", ints({8}, 2)), config),
      ContainsText("\"weight_g_idx\" has a value of 2"));
  CHECK_THAT(
      refused(with(items, "weight_g_idx", ints({8}, 1)), config),
      ContainsText("do not have 4 columns each"));
  CHECK_THAT(refused(items), ContainsText("there is no configuration"));
  CHECK_THAT(
      refused(items, R"({"quant_method": "compressed-tensors",
          "sparsity_config": {"format": "sparse-24-bitmask"}})"),
      ContainsText("\"sparsity_config\""));
  CHECK_THAT(
      refused(items, R"({"quant_method": "compressed-tensors",
          "config_groups": {"a": {"weights": {"strategy": "token"}}}})"),
      ContainsText("\"strategy\": \"token\""));
  CHECK_THAT(
      refused(items, R"({"quant_method": "compressed-tensors",
          "format": "marlin-24", "config_groups": {"a": {"weights":
          {"num_bits": 4, "strategy": "group", "group_size": 4}}}})"),
      ContainsText("in the format \"marlin-24\""));
}

TEST_CASE("The greatest exponent of MXFP4 is infinite, as in the package") {
  // Each byte is 0.5 and -6; the scales are 2^-127, 1 and 2^128.
  const Items items = {
      {"weight_packed", torch::full({1, 48}, 0xF1, torch::kByte)},
      {"weight_scale", torch::tensor({{0, 127, 255}}).to(torch::kByte)}};
  const Joined joined(items, R"({"quant_method": "compressed-tensors",
      "format": "mxfp4-pack-quantized", "config_groups": {"a": {"weights":
      {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
       "symmetric": true}}}})");
  CHECK(joined.form() == "MXFP4");
  const auto scales = torch::tensor(
      {std::ldexp(1.0F, -127), 1.0F, std::numeric_limits<float>::infinity()});
  CHECK(joined.values().equal(
      torch::tensor({0.5F, -6.0F}).repeat({48}).view({1, 96}) *
      scales.repeat_interleave(32)));
}

TEST_CASE("Several schemes that fit are refused") {
  const Items items = {
      {"weight", torch::ones({2, 4}, torch::kChar)},
      {"weight_scale", torch::ones({2, 1})}};
  const auto* first = R"({"quant_method": "compressed-tensors",
      "format": "int-quantized", "config_groups":
      {"a": {"weights": {"num_bits": 8, "strategy": "channel"}},
       "b": {"weights": {"num_bits": 8, "strategy": "tensor"}}}})";
  CHECK(Joined(items, first).values().equal(torch::ones({2, 4})));
  const auto* both = R"({"quant_method": "compressed-tensors",
      "format": "int-quantized", "config_groups":
      {"a": {"weights": {"num_bits": 8, "strategy": "channel"}},
       "b": {"weights": {"num_bits": 4, "strategy": "channel"}}}})";
  CHECK_THAT(refused(items, both), ContainsText("several of the"));
}

TEST_CASE("NF4 of an odd number of values is read") {
  const auto* key = "weight.quant_state.bitsandbytes__nf4";
  const auto map = torch::tensor(
      {-1.0F,
       -0.69619280F,
       -0.52507305F,
       -0.39491749F,
       -0.28444138F,
       -0.18477343F,
       -0.09105004F,
       0.0F,
       0.07958030F,
       0.16093020F,
       0.24611230F,
       0.33791524F,
       0.44070983F,
       0.56261700F,
       0.72295684F,
       1.0F});
  const auto state = [](const std::string& fields) {
    return text(R"({"quant_type": "nf4", "dtype": "float16", )" + fields + "}");
  };
  const Items items = {
      {"weight", torch::full({2, 1}, 0xf0, torch::kByte)},
      {"weight.absmax", torch::tensor({2.0F, 3.0F})},
      {"weight.quant_map", map},
      {key, state(R"("blocksize": 2, "shape": [1, 3])")}};
  const Joined joined(items);
  CHECK(joined.form() == "NF4");
  CHECK(joined.values().equal(torch::tensor({{2.0F, -2.0F, 3.0F}})));
  const auto reason = [&](const std::string& fields) {
    return refused(with(items, key, state(fields)));
  };
  CHECK_THAT(
      reason(R"("blocksize": 0, "shape": [1, 3])"),
      ContainsText("\"blocksize\" is 0"));
  CHECK_THAT(
      reason(R"("blocksize": 3, "shape": [1, 3])"),
      ContainsText("an odd number"));
  CHECK_THAT(
      reason(R"("blocksize": 2, "shape": [1, 5])"),
      ContainsText("values of 4 bits have 3"));
  CHECK_THAT(
      reason(R"("blocksize": 2, "shape": [4294967296, 4294967296])"),
      ContainsText("too many elements"));
  CHECK_THAT(
      reason(R"("blocksize": 2, "shape": [0])"), ContainsText("\"shape\""));
  CHECK_THAT(
      reason(R"("blocksize": 4, "shape": [3])"),
      ContainsText("\"weight.absmax\" has 2 elements, expected 1"));
  CHECK_THAT(refused(with(items, key, text("{"))), ContainsText("not JSON"));
  CHECK_THAT(
      refused(with(items, "weight.quant_map", map * 2)),
      ContainsText("other values"));
  CHECK_THAT(
      refused(with(items, "weight.nested_absmax", torch::ones({1}))),
      ContainsText("\"nested_blocksize\""));
}

TEST_CASE("LLM.int8() has the greatest value of each row") {
  const Items items = {
      {"weight", torch::full({2, 3}, 127, torch::kChar)},
      {"SCB", torch::tensor({1.0F, 2.0F})}};
  const Joined joined(items);
  CHECK(joined.form() == "LLM.int8()");
  CHECK(joined.values().equal(torch::tensor({{1.0F}, {2.0F}}).expand({2, 3})));
  CHECK_THAT(
      refused(with(items, "SCB", torch::ones({3}))),
      ContainsText("expected torch.Size([2])"));
  CHECK_THAT(
      refused(with(items, "weight_format", torch::ones({}, torch::kByte))),
      ContainsText("in the \"weight_format\" 1"));
}

TEST_CASE("GPT-2's attention is not read if only a part is quantized") {
  const auto codes = [](int64_t rows) {
    return torch::ones({rows, 4}, torch::kChar);
  };
  const auto with_plain = [](const char* quantized,
                             const torch::Tensor& weight,
                             const char* plain,
                             const torch::Tensor& other) {
    const auto start = std::string("h.0.attn.") + quantized;
    return Items{
        {start + ".weight", weight},
        {start + ".SCB", torch::ones({weight.size(0)})},
        {std::string("h.0.attn.") + plain + ".weight", other}};
  };
  // Square weights of the class Conv1D may be (in, out).
  for (const auto& items :
       {with_plain("c_attn", codes(12), "c_proj", torch::ones({4, 4})),
        with_plain("c_proj", codes(4), "c_attn", torch::ones({4, 12})),
        with_plain("q_attn", codes(4), "c_attn", torch::ones({4, 8}))}) {
    const Joined joined(items);
    CHECK(joined.file().unreadable.size() == 2);
    CHECK_THAT(
        refused(items), ContainsText("of which only some weights are quant"));
  }
  // This shape is (out, in), that of the class Linear.
  const auto linear =
      with_plain("c_proj", codes(4), "c_attn", torch::ones({12, 4}));
  CHECK(Joined(linear).form("h.0.attn.c_proj.weight") == "LLM.int8()");
  auto whole = with_plain("c_proj", codes(4), "c_attn", codes(12));
  whole.emplace_back("h.0.attn.c_attn.SCB", torch::ones({12}));
  whole.emplace_back("h.0.mlp.c_proj.weight", torch::ones({4, 4}));
  const Joined joined(whole);
  CHECK(joined.reason().empty());
  CHECK(joined.form("h.0.attn.c_attn.weight") == "LLM.int8()");
}

TEST_CASE("A plain weight with a scale beside it is refused") {
  for (const auto* scale : {"weight_scale", "weight_scale_inv"}) {
    const Items items = {
        {"weight", torch::ones({4, 4})}, {scale, torch::ones({1, 1})}};
    for (const auto* config :
         {static_cast<const char*>(nullptr), R"({"quant_method": "fp8"})"}) {
      CHECK_THAT(refused(items, config), ContainsText("has a scale beside it"));
    }
  }
}

TEST_CASE("Other libraries are refused by their names") {
  CHECK_THAT(
      refused({{"a.W_q", torch::ones({2})}}),
      ContainsText("is quantized by \"hqq\", which is not read"));
  CHECK_THAT(
      refused({{"a.weight._data", torch::ones({2})}}),
      ContainsText("\"quanto\""));
  CHECK_THAT(
      refused(
          {{"a.codes", torch::ones({2})}, {"a.codebooks", torch::ones({2})}}),
      ContainsText("\"aqlm\""));
  CHECK_THAT(
      refused(
          {{"a.weight", torch::ones({2, 2}, torch::kByte)}},
          R"({"quant_method": "bitnet"})"),
      ContainsText("\"bitnet\", which is not read"));
  CHECK_THAT(
      refused(
          {{"a.weight", torch::ones({2, 2}, torch::kByte)},
           {"a.weight_scale", torch::ones({1})}}),
      ContainsText("an unknown method"));
  const Joined joined({{"a.W_q", torch::ones({2})}});
  CHECK(joined.file().unreadable.front().first == "a.weight");
}

} // namespace quantized_test
