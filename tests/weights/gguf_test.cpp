// GGUF files: their headers, their types, and damaged ones.

#include <support/close.h>
#include <support/gguf.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <fstream>
#include <random>

// Defined in tests/fuzz.
extern "C" int fuzz_gguf(const uint8_t* data, size_t size);

namespace gguf_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::testing::gguf_types;

namespace {

std::string error_of(const std::string& bytes) {
  try {
    read_gguf_text(bytes);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

/// Returns a block of Q8_0: a scale in F16, and 32 bytes.
std::string q8_0(float scale, int8_t first) {
  auto bytes = bytes_of_number(c10::Half(scale).x);
  for (int i = 0; i < 32; ++i) {
    bytes += bytes_of_number(static_cast<int8_t>(first + i));
  }
  return bytes;
}

GgufFile one_tensor(
    const std::vector<int64_t>& shape,
    uint32_t type,
    size_t bytes) {
  return GgufFile().add_tensor("a", shape, type, std::string(bytes, '\0'));
}

/// Returns the file with other bytes at a place.
std::string changed(std::string file, size_t place, const std::string& bytes) {
  file.replace(place, bytes.size(), bytes);
  return file;
}

} // namespace

TEST_CASE("A GGUF file gives its tensors by their names") {
  const auto a = torch::rand({2, 3});
  const auto b = torch::rand({4}).to(torch::kHalf);
  const auto version = GENERATE(2U, 3U);
  auto file =
      GgufFile()
          .add_text("general.architecture", "qwen2")
          .add_tensor("token_embd.weight", a)
          .add_tensor("output_norm.weight", b)
          .add_tensor(
              "numbers",
              {1, 2},
              27,
              bytes_of_number(int64_t{-1}) + bytes_of_number(int64_t{7}))
          .add_tensor("scalar", {}, kF32, bytes_of_number(0.5F))
          .add_tensor("empty", {2, 0}, kF32, "");
  const auto read = read_gguf_text(file.bytes(version));
  CHECK(read.format == "GGUF file");
  CHECK(read.unreadable.empty());
  CHECK(read.stored.empty());
  CHECK(
      read.tensors.keys() ==
      std::vector<std::string>{
          "token_embd.weight",
          "output_norm.weight",
          "numbers",
          "scalar",
          "empty"});
  CHECK_THAT(read.tensors["token_embd.weight"], IsEqualTo(a));
  CHECK_THAT(read.tensors["output_norm.weight"], IsEqualTo(b));
  CHECK(read.tensors["numbers"].equal(torch::tensor({{-1, 7}}, torch::kLong)));
  CHECK(read.tensors["scalar"].item<float>() == 0.5F);
  CHECK(read.tensors["empty"].sizes() == torch::IntArrayRef({2, 0}));
}

TEST_CASE("Quantised tensors are computed when they are needed") {
  const auto bytes = q8_0(0.5F, -16) + q8_0(-2, 1);
  const auto file = read_gguf_text(
      GgufFile().add_tensor("ffn_up.weight", {2, 32}, kQ8_0, bytes).bytes());
  const auto& tensor = file.tensors["ffn_up.weight"];
  const auto* stored = file.stored.find(tensor);
  REQUIRE(stored != nullptr);
  CHECK(stored->form == "Q8_0");
  CHECK(stored->bytes == 68);
  CHECK(tensor.sizes() == torch::IntArrayRef({2, 32}));
  file.stored.fill(tensor);
  const auto expected = torch::stack(
      {torch::arange(-16, 16, torch::kFloat) * 0.5,
       torch::arange(1, 33, torch::kFloat) * -2});
  CHECK_THAT(tensor, IsEqualTo(expected));
}

TEST_CASE("A type that is not computed is named") {
  const auto file = read_gguf_text(one_tensor({256}, kQ1_0, 36).bytes());
  CHECK(file.tensors.is_empty());
  REQUIRE(file.unreadable.size() == 1);
  CHECK(file.unreadable[0].first == "a");
  CHECK(
      file.unreadable[0].second ==
      "has the type Q1_0 of ggml, whose values are not computed");
  // Nothing is known about its size.
  const auto unknown = read_gguf_text(one_tensor({3}, 31, 66).bytes());
  REQUIRE(unknown.unreadable.size() == 1);
  CHECK_THAT(
      unknown.unreadable[0].second,
      ContainsText("has ggml's type of the number 31"));
}

TEST_CASE("Metadata of all types is passed over") {
  auto file = GgufFile();
  const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  for (uint32_t type = 0; type < std::size(sizes); ++type) {
    if (sizes[type] > 0) {
      const auto list = bytes_of_number(type) + bytes_of_number(uint64_t{3});
      file.add("one" + std::to_string(type), type, std::string(sizes[type], 1))
          .add(
              "list" + std::to_string(type),
              kList,
              list + std::string(3 * sizes[type], 1));
    }
  }
  const auto texts = bytes_of_number(kText) + bytes_of_number(uint64_t{2}) +
      GgufFile::text("") + GgufFile::text("ab");
  file.add("texts", kList, texts)
      .add(
          "lists",
          kList,
          bytes_of_number(kList) + bytes_of_number(uint64_t{2}) + texts + texts)
      .add_number("general.alignment", 32)
      .add_tensor("a", torch::ones({2}));
  CHECK(read_gguf_text(file.bytes()).tensors["a"].equal(torch::ones({2})));
}

TEST_CASE("A GGUF header says what is wrong with it") {
  const auto good = one_tensor({2}, kF32, 8).bytes();
  REQUIRE(read_gguf_text(good).tensors.size() == 1);
  // The places of the name's length, of the dimensions and of the offset.
  constexpr size_t kName = 24;
  constexpr size_t kDimensions = kName + 9;
  constexpr size_t kSize = kDimensions + 4;
  constexpr size_t kOffset = kSize + 12;
  const auto huge = bytes_of_number(~uint64_t{0});
  const auto list_of = [](uint32_t type, uint64_t count) {
    return bytes_of_number(type) + bytes_of_number(count);
  };
  const auto lists = list_of(kList, 1);
  const auto [bytes, message] = GENERATE_COPY(table<std::string, std::string>({
      {changed(good, 4, bytes_of_number(1)), "of version 1; versions 2 and 3"},
      {changed(good, 4, bytes_of_number(0)), "of version 0"},
      {changed(good, 4, bytes_of_number(4)), "of version 4"},
      {changed(good, 4, {"\0\0\0\3", 4}), "is a big-endian GGUF file"},
      {changed(good, 8, huge), "claims 18446744073709551615 tensors"},
      {changed(good, 8, bytes_of_number(uint64_t{2})), "it is cut short"},
      {changed(good, 16, huge), "values of metadata, more than 100000"},
      {changed(good, kName, huge), "it is cut short"},
      {changed(good, kDimensions, bytes_of_number(65)), "\"a\" has 65 dimen"},
      {changed(good, kSize, huge), "\"a\" has the size -1 in its shape"},
      {changed(good, kSize, bytes_of_number(int64_t{1} << 62)),
       "\"a\" has the shape (4611686018427387904)"},
      {changed(good, kSize, bytes_of_number(int64_t{3})),
       "\"a\" has 12 bytes from byte 0 of the data, but these have 8; it is "
       "cut short"},
      {changed(good, kOffset, bytes_of_number(uint64_t{32})),
       "the data of \"a\" begin at byte 32, expected 0"},
      {changed(good, kOffset, bytes_of_number(uint64_t{1})), "at byte 1"},
      {one_tensor({1 << 30, 1 << 30, 1 << 30}, kF32, 8).bytes(),
       "a tensor of more than 2^63 elements"},
      {one_tensor({2, 33}, kQ8_0, 68).bytes(),
       "rows of 33 values, which are not whole blocks of 32"},
      {GgufFile()
           .add_tensor("a", torch::ones(2))
           .add_tensor("a", torch::ones(2))
           .bytes(),
       "it has the tensor \"a\" twice"},
      {GgufFile().add_number("b", 1).add_number("b", 1).bytes(),
       "its metadata has the key \"b\" twice"},
      {GgufFile().add("b", 13, "").bytes(), "has a value of type 13"},
      {GgufFile().add("b", kText, huge).bytes(), "it is cut short"},
      {GgufFile().add("b", kList, list_of(0, ~uint64_t{0})).bytes(),
       "it is cut short"},
      {GgufFile().add("b", kList, list_of(kText, 1U << 31U)).bytes(),
       "it is cut short"},
      {GgufFile().add("b", kList, list_of(13, 1)).bytes(),
       "has a value of type 13"},
      {GgufFile().add("b", kList, lists + lists + lists + lists).bytes(),
       "lists of lists of lists of lists"},
      {GgufFile().add_number("general.alignment", 24).bytes(),
       "expected a power of two from 8 as its general.alignment, but it has 24"},
      {GgufFile().add_number("general.alignment", 0).bytes(), "but it has 0"},
      {GgufFile().add_text("general.alignment", "x").bytes(),
       "but it has another value"},
      {GgufFile().add_number("split.count", 3).bytes(),
       "the file is one of the 3 parts of a GGUF file, which are not read. "
       "Merge them by llama.cpp's program: llama-gguf-split --merge"},
      {GgufFile().add_tensor(std::string(70000, 'a'), torch::ones(2)).bytes(),
       "has 70000 bytes, but the longest"},
  }));
  CHECK_THAT(error_of(bytes), ContainsText(message));
}

TEST_CASE("A GGUF file that overlaps itself is refused") {
  auto bytes = GgufFile()
                   .add_tensor("a", torch::ones({16}))
                   .add_tensor("b", torch::ones({8}))
                   .bytes();
  REQUIRE(read_gguf_text(bytes).tensors.size() == 2);
  const auto offset = bytes_of_number(uint64_t{64});
  const auto place = bytes.find(offset, 24);
  REQUIRE(place != std::string::npos);
  const auto error =
      error_of(changed(bytes, place, bytes_of_number(uint64_t{32})));
  CHECK_THAT(
      error, ContainsText("the data of \"b\" begin at byte 32, expected 64"));
}

TEST_CASE("A GGUF file that ends too early is refused, and flips do no harm") {
  const auto bytes = GgufFile()
                         .add_text("general.architecture", "llama")
                         .add_numbers("llama.attention.head_count", {2, 2})
                         .add_tensor("blk.0.attn_q.weight", torch::rand({8, 4}))
                         .add_tensor(
                             "blk.0.attn_k.weight",
                             {4, 32},
                             kQ8_0,
                             q8_0(1, 2) + q8_0(2, 3) + q8_0(3, 4) + q8_0(4, 5))
                         .bytes();
  REQUIRE(read_gguf_text(bytes).tensors.size() == 2);
  for (size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    CHECK_THROWS_AS(read_gguf_text(bytes.substr(0, length)), c10::Error);
  }
  std::mt19937_64 random(20261128);
  for (int i = 0; i < 20'000; ++i) {
    auto flipped = bytes;
    for (auto left = 1 + random() % 3; left > 0; --left) {
      const auto bit = random() % (8 * bytes.size());
      flipped[bit / 8] = static_cast<char>(
          static_cast<uint8_t>(flipped[bit / 8]) ^ (1U << (bit % 8)));
    }
    const auto* data = reinterpret_cast<const uint8_t*>(flipped.data());
    CHECK(fuzz_gguf(data, flipped.size()) == 0);
  }
}

TEST_CASE("A block of a GGUF file loads into attention") {
  torch::manual_seed(3);
  const auto options = MultiHeadAttentionOptions(8, 8, 4, 4).num_kv_heads(2);
  const auto biased = MultiHeadAttentionOptions(options).qkv_bias(true);
  MultiHeadAttention source(biased);
  auto file = GgufFile().add_text("general.architecture", "qwen2");
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    file.add_tensor("blk.3." + name, tensor.detach());
  };
  add("attn_norm.weight", torch::ones({8}));
  add("attn_q.weight", source->W_query->weight);
  add("attn_q.bias", source->W_query->bias);
  add("attn_k.weight", source->W_key->weight);
  add("attn_k.bias", source->W_key->bias);
  add("attn_v.weight", source->W_value->weight);
  add("attn_v.bias", source->W_value->bias);
  add("attn_output.weight", source->out_proj->weight);
  add("ffn_down.weight", torch::ones({8, 32}));
  add("ffn_gate_inp.weight", torch::ones({8, 32}));
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  std::ofstream(path, std::ios::binary) << file.bytes();

  MultiHeadAttention target(biased);
  const auto report =
      load_weights(*target, path, LoadOptions().prefix("blk.3"));
  CHECK(report.layout == "gguf");
  CHECK(report.zeros == std::vector<std::string>{"out_proj.bias"});
  CHECK_THAT(target->W_query->weight, IsEqualTo(source->W_query->weight));
  CHECK_THAT(target->W_key->bias, IsEqualTo(source->W_key->bias));
  CHECK_THAT(target->W_value->weight, IsEqualTo(source->W_value->weight));
  CHECK_THAT(target->out_proj->weight, IsEqualTo(source->out_proj->weight));
}

} // namespace gguf_test
