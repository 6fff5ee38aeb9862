// inspect_weights: the content of a file, as data.

#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <fstream>
#include <sstream>

namespace inspect_weights_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Attention = WeightsInfo::Attention;
using Names = std::vector<std::string>;
using Numbers = std::vector<int64_t>;

Attention only_attention(const std::string& path) {
  const auto info = inspect_weights(path);
  REQUIRE(info.attention.size() == 1);
  return info.attention.front();
}

/// Makes a module of the sizes that were found.
MultiHeadAttention module_of(const Attention& found, int64_t num_heads) {
  return MultiHeadAttention(
      MultiHeadAttentionOptions(
          found.d_in(), found.d_out(), /*context_length=*/8, num_heads)
          .num_kv_heads(found.num_kv_heads(num_heads))
          .qkv_bias(found.qkv_bias())
          .out_proj(found.out_proj()));
}

} // namespace

TEST_CASE("inspect_weights gives tensors, and where there is attention") {
  const auto path = golden("layouts/gpt2.safetensors");
  const auto info = inspect_weights(path);
  CHECK(info.path == path);
  CHECK(info.format == "safetensors file");
  CHECK(info.state_dict.empty());
  CHECK(info.remarks.empty());
  const auto weights = read_weights(path);
  REQUIRE(info.tensors.size() == weights.size());
  for (size_t i = 0; i < info.tensors.size(); ++i) {
    const auto& item = *(weights.begin() + static_cast<std::ptrdiff_t>(i));
    CHECK(info.tensors[i].key == item.key());
    CHECK(info.tensors[i].shape == item.value().sizes().vec());
    CHECK(info.tensors[i].dtype == item.value().scalar_type());
    CHECK(info.tensors[i].bytes == item.value().nbytes());
  }
  REQUIRE(info.attention.size() == 2);
  const auto& found = info.attention[1];
  CHECK(found.path == "transformer.h.1.attn");
  CHECK(found.layouts == Names{"gpt2"});
  CHECK(found.shapes.at("W_value.weight") == Numbers{12, 12});
  CHECK(found.possible_num_heads == Numbers{1, 2, 3, 4, 6, 12});
  CHECK_FALSE(found.lists_heads);
  CHECK(found.qkv_bias());
  CHECK(found.out_proj());
  CHECK(found.context_length() == 0);
}

TEST_CASE("What inspect_weights finds is enough to build and load a module") {
  const auto* name = GENERATE("gpt2", "llama", "bert", "q-linear");
  CAPTURE(name);
  const auto path = golden("layouts/" + std::string(name) + ".safetensors");
  const auto info = inspect_weights(path);
  REQUIRE_FALSE(info.attention.empty());
  for (const auto& found : info.attention) {
    CAPTURE(found.path);
    REQUIRE_FALSE(found.possible_num_heads.empty());
    for (const auto num_heads : found.possible_num_heads) {
      auto module = module_of(found, num_heads);
      const auto report =
          load_weights(*module, path, LoadOptions().prefix(found.path));
      CHECK(report.layout == found.layouts.front());
      CHECK(report.missing.empty());
    }
  }
}

TEST_CASE("Heads that a file lists, and its mask, are counted") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  save_weights(
      *MultiHeadAttentionWrapper(6, 4, /*context_length=*/5, 0.0, 3), path);
  const auto found = only_attention(path);
  CHECK(found.path.empty());
  CHECK(found.layouts == Names{"head_list"});
  CHECK(found.lists_heads);
  CHECK(found.possible_num_heads == Numbers{3});
  CHECK(found.num_kv_heads(3) == 3);
  CHECK(found.d_in() == 6);
  CHECK(found.d_out() == 12);
  CHECK(found.context_length() == 5);
  CHECK_FALSE(found.qkv_bias());
  CHECK_FALSE(found.out_proj());
  THROWS_WITH(
      found.num_kv_heads(2),
      "WeightsInfo: expected num_heads to be one of 3, but got 2");
}

TEST_CASE(
    "Where names and shapes do not decide, all layouts that fit are given") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  tensors.insert("c_attn.weight", torch::ones({9, 9}));
  write_weights(tensors, path);
  const auto found = only_attention(path);
  CHECK(found.layouts == Names{"gpt2", "nano_gpt"});
  CHECK(found.shapes.empty());
  CHECK(found.possible_num_heads.empty());
  CHECK(found.d_in() == 0);
}

TEST_CASE("Keys that loading refuses are named") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  auto tensors = read_weights(golden("layouts/q-linear.safetensors"));
  const auto start =
      only_attention(golden("layouts/q-linear.safetensors")).path;
  const auto key = (start.empty() ? "" : start + ".") + "q_norm.weight";
  tensors.insert(key, torch::ones({2}));
  write_weights(tensors, path);
  CHECK(only_attention(path).unknown_keys == Names{"q_norm.weight"});
}

TEST_CASE("inspect_weights names the state dict and what is no tensor") {
  const auto path = golden("files/state-dict-key.pt");
  const auto info = inspect_weights(path);
  CHECK(info.state_dict == "state_dict");
  CHECK_FALSE(info.other_values.empty());
  const auto part = inspect_weights(path, InspectOptions().prefix("linear"));
  REQUIRE(part.tensors.size() == 2);
  CHECK(part.tensors[0].key == "weight");
  CHECK(part.other_values.empty());

  const auto sparse = inspect_weights(golden("files/sparse.pt"));
  REQUIRE_FALSE(sparse.unreadable.empty());
  CHECK_THAT(sparse.unreadable[0].reason, ContainsText("sparse"));
}

TEST_CASE("inspect_weights reads values only if asked to") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  std::ostringstream bytes;
  bytes << std::ifstream(
               golden("files/checksums.safetensors"), std::ios::binary)
               .rdbuf();
  auto damaged = bytes.str();
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  std::ofstream(path, std::ios::binary) << damaged;
  CHECK_FALSE(inspect_weights(path).tensors.empty());
  THROWS_WITH(
      inspect_weights(path, InspectOptions().check(true)),
      "inspect_weights(\"" + path + "\"): the file is damaged");
  THROWS_WITH(
      inspect_weights(path, InspectOptions().prefix("nothing")),
      "no key begins with the prefix \"nothing.\"");
}

TEST_CASE("Dtypes are named as Python names them") {
  CHECK(dtype_name(torch::kFloat) == "float32");
  CHECK(dtype_name(torch::kBool) == "bool");
  for (const auto dtype :
       {torch::kFloat, torch::kBFloat16, torch::kLong, torch::kComplexDouble}) {
    CHECK(select_dtype(dtype_name(dtype)) == dtype);
  }
  THROWS_WITH(select_dtype("bf16"), "select_dtype: expected a dtype such as ");
  THROWS_WITH(select_dtype(""), "but got \"\"");
}

} // namespace inspect_weights_test
