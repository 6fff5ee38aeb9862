#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <tools/convert.h>
#include <torch_attention/weights/pretrained.h>

#include <sstream>

namespace convert_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::tools;

namespace {

std::string convert(
    const std::string& input,
    const std::string& output,
    const ConvertOptions& options = {}) {
  std::ostringstream out;
  convert_file(input, output, options, out);
  return out.str();
}

} // namespace

TEST_CASE("convert writes the same tensors in another format") {
  const TemporaryFolder folder;
  const auto* name = GENERATE("a.pt", "a.safetensors");
  const auto input = golden("layouts/bert.safetensors");
  const auto before = read_weights(input);
  CHECK_THAT(
      convert(input, folder.file(name)),
      ContainsText(std::to_string(before.size()) + " tensors"));
  const auto after = read_weights(folder.file(name));
  REQUIRE(after.size() == before.size());
  for (const auto& item : before) {
    CAPTURE(item.key());
    CHECK(after[item.key()].equal(item.value()));
  }
}

TEST_CASE("convert takes one module, and gives it another layout and dtype") {
  const TemporaryFolder folder;
  const auto output = folder.file("book.safetensors");
  ConvertOptions options;
  options.prefix("transformer.h.1.attn");
  options.target(WeightLayout::book());
  options.dtype(torch::kDouble);
  const auto input = golden("layouts/gpt2.safetensors");
  convert(input, output, options);
  const auto before = read_weights(input);
  const auto after = read_weights(output);
  const auto c_attn = before["transformer.h.1.attn.c_attn.weight"];
  CHECK(after["W_key.weight"].equal(
      c_attn.t().slice(0, 12, 24).to(torch::kDouble)));
  CHECK(after["out_proj.bias"].scalar_type() == torch::kDouble);
  CHECK(after.size() == 8);
}

TEST_CASE("convert to a layout that lists heads asks for their number") {
  const TemporaryFolder folder;
  const auto output = folder.file("heads.pt");
  const auto input = golden("layouts/q-linear.safetensors");
  ConvertOptions options;
  options.target(WeightLayout::query_key_value_heads());
  THROWS_WITH(convert(input, output, options), "num_heads");
  options.num_heads(2);
  convert(input, output, options);
  const auto tensors = read_weights(output);
  CHECK(tensors.contains("heads.1.query.weight"));
  CHECK_FALSE(tensors.contains("heads.2.query.weight"));
}

TEST_CASE("convert refuses what it cannot write, before it writes") {
  const TemporaryFolder folder;
  const auto input = golden("files/plain.safetensors");
  THROWS_WITH(
      convert(input, folder.file("a.onnx")),
      "expected a file name that ends with .safetensors");
  THROWS_WITH(
      convert(golden("files/sparse.pt"), folder.file("a.pt")),
      "is a sparse tensor");
  ConvertOptions options;
  options.target(WeightLayout::book());
  CHECK_THROWS_AS(convert(input, folder.file("a.pt"), options), c10::Error);
}

TEST_CASE("convert writes no huge file of a small one") {
  const TemporaryFolder folder;
  const auto input = folder.file("a.pt");
  const auto output = folder.file(GENERATE("b.pt", "b.safetensors"));
  const auto values = torch::arange(10'000, torch::kFloat);
  torch::serialize::OutputArchive archive;
  const auto write = [&](const std::string& name, const torch::Tensor& tensor) {
    archive.write(name, tensor, /*is_buffer=*/true);
  };
  SECTION("repeated by strides of zero") {
    write("x", values.slice(0, 0, 1).expand({1 << 20, 1 << 20}));
    archive.save_to(input);
    THROWS_WITH(
        convert(input, output),
        "\"x\" of shape (1048576, 1048576) repeats its 1");
  }
  SECTION("whose rows overlap") {
    write("x", values.as_strided({5000, 5000}, {1, 1}));
    archive.save_to(input);
    THROWS_WITH(convert(input, output), "repeats its 9999 elements");
  }
  SECTION("whose bytes are counted beyond 64 bits") {
    constexpr auto kSize = int64_t{1} << 31;
    write("x", values.slice(0, 0, 1).expand({kSize, kSize}));
    archive.save_to(input);
    THROWS_WITH(convert(input, output), "repeats its 1 elements");
  }
  SECTION("of which many tensors are views") {
    for (int64_t i = 0; i < 200; ++i) {
      write("x" + std::to_string(i), values.slice(0, i));
    }
    archive.save_to(input);
    THROWS_WITH(
        convert(input, output),
        "read the file's 40000 bytes more than 64 times; convert it in Python");
  }
  CHECK_THROWS_AS(read_weights(output), c10::Error);
}

TEST_CASE("A dtype is called as Python calls it") {
  CHECK(dtype_named("bfloat16") == torch::kBFloat16);
  THROWS_WITH(dtype_named("bf16"), "but got \"bf16\"");
  THROWS_WITH(dtype_named("int64"), "expected a dtype such as float32");
}

TEST_CASE("convert asks config.json which of two layouts a file is in") {
  const TemporaryFolder folder;
  const std::string source = golden("pretrained/gpt_bigcode_heads/");
  const auto output = folder.file("book.safetensors");
  ConvertOptions options;
  options.prefix("transformer.h.0.attn");
  options.target(WeightLayout::book());
  const auto said = convert(source + "model.safetensors", output, options);
  CHECK(said.find("gpt_bigcode") == std::string::npos);
  const auto attention = attention_from_pretrained(source, 0);
  const auto after = read_weights(output);
  CHECK(after["W_query.weight"].equal(attention->W_query->weight));
  CHECK(after["W_value.bias"].equal(attention->W_value->bias));

  // Without it what is not certain is said.
  const auto alone = folder.file("alone.safetensors");
  convert(source + "model.safetensors", alone);
  CHECK_THAT(convert(alone, output, options), ContainsText("gpt_bigcode"));
}

} // namespace convert_test
