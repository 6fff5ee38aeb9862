// Changes by llama.cpp's converter in tensors of attention, undone.

#include <support/close.h>
#include <support/gguf.h>
#include <support/test.h>

namespace gguf_changes_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::testing::gguf_types;

namespace {

/// Returns the rows of a model in the order of GGUF files.
torch::Tensor permuted(const torch::Tensor& rows, int64_t heads) {
  const auto half = rows.size(0) / heads / 2;
  return rows.unflatten(0, {heads, 2, half}).transpose(1, 2).flatten(0, 2);
}

GgufFile of_architecture(
    const std::string& name,
    uint32_t heads,
    uint32_t key_heads) {
  return GgufFile()
      .add_text("general.architecture", name)
      .add_number(name + ".attention.head_count", heads)
      .add_number(name + ".attention.head_count_kv", key_heads);
}

/// Returns why the file's only unreadable tensor is not read.
std::string reason_of(const GgufFile& file) {
  const auto read = read_gguf_text(file.bytes());
  return read.unreadable.size() == 1 ? read.unreadable.front().second
                                     : "read, or several are not read";
}

} // namespace

TEST_CASE("Permuted rows of queries and keys get the model's order") {
  const auto q = torch::rand({24, 5});
  const auto q_bias = torch::rand({24});
  const auto k = torch::rand({12, 5}).to(torch::kHalf);
  const auto v = torch::rand({12, 5});
  const auto read =
      read_filled(of_architecture("llama", 4, 2)
                      .add_tensor("blk.0.attn_q.weight", permuted(q, 4))
                      .add_tensor("blk.0.attn_q.bias", permuted(q_bias, 4))
                      .add_tensor("blk.0.attn_k.weight", permuted(k, 2))
                      .add_tensor("blk.0.attn_v.weight", v));
  CHECK(read.unreadable.empty());
  CHECK_THAT(read.tensors["blk.0.attn_q.weight"], IsEqualTo(q));
  CHECK_THAT(read.tensors["blk.0.attn_q.bias"], IsEqualTo(q_bias));
  const auto& keys = read.tensors["blk.0.attn_k.weight"];
  CHECK_THAT(keys, IsEqualTo(k.to(torch::kFloat)));
  CHECK(read.stored.find(keys)->form == "F16, rows permuted");
  CHECK_THAT(read.tensors["blk.0.attn_v.weight"], IsEqualTo(v));
}

TEST_CASE("Rows of quantised tensors get the model's order") {
  constexpr int kRows = 8;
  const auto row = [](int number) {
    return bytes_of_number(c10::Half(1.0F).x) +
        std::string(32, static_cast<char>(number));
  };
  std::string bytes;
  const auto order =
      permuted(torch::arange(kRows, torch::kInt).unsqueeze(1), 2);
  for (int i = 0; i < kRows; ++i) {
    bytes += row(order[i].item<int>());
  }
  const auto read = read_filled(
      of_architecture("smollm3", 2, 2)
          .add_tensor("blk.11.attn_k.weight", {kRows, 32}, kQ8_0, bytes));
  const auto& keys = read.tensors["blk.11.attn_k.weight"];
  CHECK(read.stored.find(keys)->form == "Q8_0");
  CHECK_THAT(
      keys,
      IsEqualTo(torch::arange(kRows, torch::kFloat)
                    .unsqueeze(1)
                    .expand({kRows, 32})));
}

TEST_CASE("Joined queries, keys and values get the model's order") {
  const auto q = torch::rand({16, 3});
  const auto k = torch::rand({8, 3});
  const auto v = torch::rand({8, 3});
  const auto read =
      read_filled(of_architecture("granite", 4, 2)
                      .add_number("granite.attention.key_length", 4)
                      .add_tensor(
                          "blk.0.attn_qkv.weight",
                          torch::cat({permuted(q, 4), permuted(k, 2), v})));
  CHECK_THAT(
      read.tensors["blk.0.attn_qkv.weight"], IsEqualTo(torch::cat({q, k, v})));
}

TEST_CASE("Layers may have different numbers of heads") {
  const auto first = torch::rand({16, 3});
  const auto second = torch::rand({16, 3});
  const auto read =
      read_filled(GgufFile()
                      .add_text("general.architecture", "deci")
                      .add_numbers("deci.attention.head_count", {2, 4})
                      .add_tensor("blk.0.attn_k.weight", permuted(first, 2))
                      .add_tensor("blk.1.attn_k.weight", permuted(second, 4)));
  CHECK_THAT(read.tensors["blk.0.attn_k.weight"], IsEqualTo(first));
  CHECK_THAT(read.tensors["blk.1.attn_k.weight"], IsEqualTo(second));
}

TEST_CASE("Norms that 1 was added to get the model's values") {
  const auto norm = torch::tensor({-1.5F, -0.75F, 0.0F, 0.125F, 40.0F});
  const std::string name = GENERATE(
      "gemma3",
      "gemma-embedding",
      "minimax-m3",
      "nemotron",
      "plamo3",
      "qwen3next",
      "qwen35",
      "qwen35moe",
      "step35");
  const auto read =
      read_filled(of_architecture(name, 2, 2)
                      .add_tensor("blk.0.attn_q_norm.weight", norm + 1)
                      .add_tensor("blk.0.attn_norm.weight", norm + 1)
                      .add_tensor("blk.0.attn_norm.bias", norm + 1)
                      .add_tensor("blk.0.ssm_norm.weight", norm + 1)
                      .add_tensor("output_norm.weight", norm + 1)
                      .add_tensor("blk.0.attn_q.weight", torch::ones({4, 2})));
  CHECK_THAT(read.tensors["blk.0.attn_q_norm.weight"], IsEqualTo(norm));
  // Other numbers are added to some of PLaMo's norms.
  for (const auto* key : {"blk.0.attn_norm.weight", "output_norm.weight"}) {
    CHECK_THAT(
        read.tensors[key], IsEqualTo(name == "plamo3" ? norm + 1 : norm));
  }
  for (const auto* key : {"blk.0.attn_norm.bias", "blk.0.ssm_norm.weight"}) {
    CHECK_THAT(read.tensors[key], IsEqualTo(norm + 1));
  }
  CHECK(
      read.stored.find(read.tensors["blk.0.attn_q_norm.weight"])->form ==
      "F32, 1 added");
  // Less one, it would need more bits.
  const auto wrong = read_gguf_text(
      of_architecture(name, 2, 2)
          .add_tensor("blk.0.attn_q_norm.weight", torch::tensor({1e-9F}))
          .bytes());
  CHECK_THROWS_WITH(
      wrong.check({"blk.0.attn_q_norm.weight"}),
      ContainsText("from which 1 cannot be subtracted exactly"));
}

TEST_CASE("Other architectures keep the order of their rows") {
  const auto q = torch::rand({8, 2});
  const auto name = GENERATE("qwen2", "qwen3", "gpt-oss", "gemma2", "glm4");
  const auto read = read_gguf_text(of_architecture(name, 2, 2)
                                       .add_tensor("blk.0.attn_q.weight", q)
                                       .add_tensor("v.blk.0.attn_k.weight", q)
                                       .bytes());
  CHECK(read.stored.empty());
  CHECK_THAT(read.tensors["blk.0.attn_q.weight"], IsEqualTo(q));
}

TEST_CASE("What cannot be undone is not read") {
  const auto rows = torch::rand({8, 2});
  const auto [file, reason] = GENERATE_COPY(table<GgufFile, std::string>({
      {of_architecture("llama5", 2, 2).add_tensor("blk.0.attn_q.weight", rows),
       "has rows whose order is not known for the architecture \"llama5\""},
      {GgufFile().add_tensor("blk.0.attn_k.bias", torch::rand({8})),
       "has rows whose order is not known: the file has no "
       "general.architecture"},
      {of_architecture("clip", 2, 2).add_tensor("v.blk.0.attn_q.weight", rows),
       "has rows whose order is not known for the architecture \"clip\""},
      {of_architecture("llama", 2, 2).add_tensor("v.blk.0.attn_q.weight", rows),
       "has rows whose order is not known for the architecture \"llama\""},
      {GgufFile()
           .add_text("general.architecture", "llama")
           .add_tensor("blk.0.attn_q.weight", rows),
       "has rows in an order that depends on llama.attention.head_count, but "
       "the metadata lacks it or has no number of heads there"},
      {of_architecture("llama", 2, 0).add_tensor("blk.0.attn_q.weight", rows),
       "depends on llama.attention.head_count_kv"},
      {of_architecture("llama", 3, 3).add_tensor("blk.0.attn_q.weight", rows),
       "has 8 rows, which are not 3 heads of the metadata"},
      {of_architecture("llama", 8, 8).add_tensor("blk.0.attn_q.weight", rows),
       "has 8 rows, which are not 8 heads of the metadata"},
      {of_architecture("llama", 2, 2)
           .add_number("llama.attention.key_length", 8)
           .add_tensor("blk.0.attn_q.weight", rows),
       "has 8 rows, which are not 2 heads of the metadata"},
      {of_architecture("baichuan", 4, 2)
           .add_tensor("blk.0.attn_k.weight", rows),
       "has rows whose order is not known"},
      {of_architecture("minicpm", 2, 2)
           .add_tensor("blk.0.attn_q.bias", torch::rand({8})),
       "has rows whose order is not known"},
      {of_architecture("llama", 2, 2)
           .add_tensor("blk.0.attn_q.weight", {8, 1}, kF64, std::string(64, 0)),
       "has permuted rows, which are not read of the type F64"},
      {of_architecture("chameleon", 2, 2)
           .add_tensor("blk.0.attn_q_norm.weight", torch::rand({4})),
       "may be permuted or made by the converter"},
      {of_architecture("gemma3", 2, 2)
           .add_tensor(
               "blk.0.attn_q_norm.weight", torch::rand({4}).to(torch::kHalf)),
       "has values to which the converter has added 1, and is not stored as "
       "F32"},
      {of_architecture("glm4", 2, 2)
           .add_numbers("glm4.rope.dimension_sections", {1, 1, 0, 0})
           .add_tensor("blk.0.attn_q.weight", rows),
       "has rows in another order than the model: it has positions"},
      {of_architecture("qwen35", 2, 2)
           .add_tensor("blk.0.attn_qkv.weight", rows),
       "belongs to linear attention"},
      {of_architecture("falcon-h1", 2, 2)
           .add_tensor("blk.0.attn_output.weight", rows),
       "was multiplied by numbers of the model's configuration"},
      {of_architecture("qwen3", 2, 2)
           .add_tensor("blk.0.attn_v.weight", rows)
           .add_tensor("blk.0.attn_v.scale", torch::rand({1})),
       "has values to be multiplied by \"blk.0.attn_v.scale\", which is not "
       "done"},
  }));
  CHECK_THAT(reason_of(file), ContainsText(reason));
}

} // namespace gguf_changes_test
