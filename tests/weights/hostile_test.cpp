// Damaged and malicious files: refused in words, or read as they were written.

#include <format_text.h>
#include <fuzz/fuzz.h>
#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>
#include <weights/files/dtypes.h>
#include <weights/files/pickle.h>
#include <weights/files/write.h>
#include <weights/files/zip_archive.h>
#include <weights/read.h>
#include <weights/select.h>

#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <string_view>

// Defined in tests/fuzz.
extern "C" {
int fuzz_archive(const uint8_t* data, size_t size);
int fuzz_config(const uint8_t* data, size_t size);
int fuzz_export_config(const uint8_t* data, size_t size);
int fuzz_pickle(const uint8_t* data, size_t size);
int fuzz_safetensors(const uint8_t* data, size_t size);
int fuzz_sharded_index(const uint8_t* data, size_t size);
}

namespace hostile_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::weights::files;
using namespace torch_attention::testing;

namespace {

std::string read_all(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

/// Bytes at an address as aligned as a mapped file's.
Bytes as_file(const std::string& text) {
  auto copy = std::make_shared<std::vector<std::max_align_t>>(
      text.size() / sizeof(std::max_align_t) + 1);
  auto* data = reinterpret_cast<uint8_t*>(copy->data());
  std::copy(text.begin(), text.end(), data);
  return {copy, data, text.size()};
}

WeightFile read(const std::string& bytes) {
  return select_below(read_weight_bytes(as_file(bytes)), "");
}

/// The tensors, all of them read and checked.
StateDict read_checked(const std::string& bytes) {
  const auto file = read(bytes);
  file.check(file.tensors.keys());
  return file.tensors;
}

std::string error_of(const std::string& bytes) {
  try {
    read_checked(bytes);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

bool same_values(const StateDict& a, const StateDict& b) {
  if (a.keys() != b.keys()) {
    return false;
  }
  for (const auto& item : a) {
    const auto& other = b[item.key()];
    if (item.value().scalar_type() != other.scalar_type() ||
        item.value().sizes() != other.sizes()) {
      return false;
    }
    const auto bytes = [](const torch::Tensor& tensor) {
      const auto values = tensor.contiguous();
      return std::string(
          static_cast<const char*>(values.data_ptr()), values.nbytes());
    };
    if (bytes(item.value()) != bytes(other)) {
      return false;
    }
  }
  return true;
}

/// A safetensors file of a header and that many bytes of data.
std::string safetensors(const std::string& header, size_t data) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  return bytes + header + std::string(data, '\0');
}

/// A header of a safetensors file, the bytes of data behind it, and how it is
/// refused.
struct WrongHeader {
  std::string_view header;
  size_t data;
  const char* message;
};

constexpr WrongHeader kWrongHeaders[] = {
    {std::string_view("{}\0", 3),
     0,
     "JSON is none, or is cut short (at byte 3"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
     4,
     "its tensors have 8 bytes, but 4 follow the header; it is cut short"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
     9,
     "its tensors have 8 bytes, but 9 follow the header"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
     12,
     "the data of \"a\" begin at byte 4, expected 0"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
     6,
     "the data of \"b\" begin at byte 2, expected 4"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
     12,
     "the data of \"b\" begin at byte 8, expected 4"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
     R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     8,
     "has the key \"a\" twice"},
    {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
     8,
     "ends at byte 12 of a storage of 8 bytes"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})",
     8,
     "\"a\" of shape (1) and dtype F32 has 8 bytes"},
    {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],)"
     R"("data_offsets":[0,8]}})",
     8,
     "a tensor of more than 2^63 elements"},
    {R"({"a":{"dtype":"F32","shape":[18446744073709551615],)"
     R"("data_offsets":[0,8]}})",
     8,
     "an integer of 64 bits, but it has 18446744073709551615"},
    {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",
     8,
     "\"a\" has the number -2 in its shape"},
    {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})",
     8,
     "an integer of 64 bits, but it has 2.0"},
    {R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})",
     8,
     "\"a\" has the dtype \"F33\", which is not known"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",
     8,
     "the data_offsets of \"a\" are [8, 0]"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})",
     8,
     "the data_offsets of \"a\" are [0]"},
    {R"({"a":{"dtype":"F32","data_offsets":[0,8]}})",
     8,
     "\"a\" lacks dtype, shape or data_offsets"},
    {R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})",
     8,
     "an integer of 64 bits, but it has a list"},
    {R"({"a":{"dtype":{},"shape":[2],"data_offsets":[0,8]}})",
     8,
     "a text as a dtype, but it has an object"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})",
     8,
     "JSON is none, or is cut short (at byte 5"},
    {R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
     8,
     "has the key \"dtype\" twice"},
    {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})",
     2,
     "\"a\" of shape (3) and dtype F4 has 2 bytes"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4,8]}})",
     8,
     "the data_offsets of \"a\" are [0, 4, 8]"},
    {R"({"a":1})", 0, "expected an object in its header, but it has a number"},
    {R"({"__metadata__":{"a":1}})",
     0,
     "expected a text in __metadata__, but it has a number"},
    {R"({"__metadata__":{},"__metadata__":{}})",
     0,
     "has the key \"__metadata__\" twice"},
    {R"({"__metadata__":{"crc32:a":"00000000"},)"
     R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
     4,
     "\"a\" does not have the checksum"},
    {R"({"__metadata__":{"crc32:b":"00000000"},)"
     R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
     4,
     "\"a\" has no checksum, but others have"},
    {R"({"__metadata__":{"crc32:a":"zz"},)"
     R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
     4,
     "the checksum of \"a\" is \"zz\""},
};

} // namespace

TEST_CASE("A flipped bit is refused, or changes nothing") {
  // Safetensors files have no checksums but those that we write.
  const auto* name = GENERATE(
      "ordered-dict.pt",
      "scripted.pt",
      "exported.pt2",
      "exported-until-2.7.pt2",
      "deflated.pt",
      "checksums.safetensors");
  CAPTURE(name);
  const auto bytes = read_all(golden("files/" + std::string(name)));
  const auto expected = read_checked(bytes);
  REQUIRE(expected.size() > 0);
  std::mt19937_64 random(20261121);
  size_t refused = 0;
  size_t other_values = 0;
  constexpr int kFlips = 10'000;
  for (int i = 0; i < kFlips; ++i) {
    auto flipped = bytes;
    const auto bit = random() % (8 * bytes.size());
    flipped[bit / 8] = static_cast<char>(
        static_cast<uint8_t>(flipped[bit / 8]) ^ (1U << (bit % 8)));
    try {
      if (!same_values(read_checked(flipped), expected)) {
        ++other_values;
        CAPTURE(bit);
        CHECK(other_values == 0);
      }
    } catch (const c10::Error&) {
      ++refused;
    }
  }
  CHECK(other_values == 0);
  CHECK(refused > kFlips / 20);
}

TEST_CASE("A file that ends too early is refused") {
  const auto* name = GENERATE(
      "ordered-dict.pt",
      "scripted.pt",
      "exported.pt2",
      "plain.safetensors",
      "checksums.safetensors");
  CAPTURE(name);
  const auto bytes = read_all(golden("files/" + std::string(name)));
  for (size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    CHECK_THROWS_AS(read_checked(bytes.substr(0, length)), c10::Error);
  }
}

TEST_CASE("A safetensors header says what is wrong with it") {
  const std::string good =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  REQUIRE(read_checked(safetensors(good, 8)).size() == 1);

  const auto [header, data, message] =
      GENERATE(from_range(std::begin(kWrongHeaders), std::end(kWrongHeaders)));
  CAPTURE(header);
  CHECK_THAT(
      error_of(safetensors(std::string(header), data)), ContainsText(message));
}

TEST_CASE("What the safetensors package passes over is passed over") {
  const std::string entry =
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4])";
  const auto [begin, end, data] =
      GENERATE(table<std::string, std::string, size_t>({
          {"{", R"(},"__metadata__":null})", 4},
          {"{", R"(,"later":{"b":[1,null,{"c":"d"}]}}})", 4},
          {" {", "}} ", 4},
          {"{",
           R"(},"b":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[4,7]}})",
           7},
          {"{",
           R"(},"b":{"dtype":"F4","shape":[3,2],"data_offsets":[4,7]}})",
           7},
      }));
  const auto header = begin + entry + end;
  CAPTURE(header);
  CHECK(read(safetensors(header, data)).tensors.contains("a"));
}

TEST_CASE("Two numbers of F4 are one element") {
  if (!dtype_from_python("torch.float4_e2m1fn_x2")) {
    WARN("this LibTorch has no float4");
    return;
  }
  const auto file = read(safetensors(
      R"({"a":{"dtype":"F4","shape":[2,4],"data_offsets":[0,4]}})", 4));
  CHECK(file.tensors["a"].sizes() == torch::IntArrayRef({2, 2}));
}

TEST_CASE("A line break after the end of an archive is no damage") {
  const auto bytes = read_all(golden("files/ordered-dict.pt"));
  const auto expected = read_checked(bytes);
  CHECK(same_values(read_checked(bytes + "\n"), expected));
  CHECK(same_values(read_checked(bytes + "\r\n"), expected));
  CHECK_THAT(error_of(bytes + "x"), ContainsText("cut or damaged"));
}

TEST_CASE("A safetensors header is not larger than its file") {
  auto bytes = safetensors("{}", 0);
  const auto set_length = [&](uint64_t length) {
    std::memcpy(bytes.data(), &length, sizeof(length));
  };
  set_length(3);
  CHECK_THAT(error_of(bytes), ContainsText("more than the file has"));
  set_length(100'000'001);
  CHECK_THAT(error_of(bytes), ContainsText("more than 100 MB"));
}

TEST_CASE("A bool is 0 or 1") {
  auto bytes = safetensors(
      R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2);
  CHECK(read_checked(bytes)["a"].sum().item<int64_t>() == 0);
  bytes.back() = 2;
  CHECK_THAT(error_of(bytes), ContainsText("values other than 0 and 1"));
}

TEST_CASE("An index names files beside it only") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors.index.json");
  const auto error = [&](const std::string& json) -> std::string {
    std::ofstream(path) << json;
    try {
      read_weight_file(path);
    } catch (const c10::Error& thrown) {
      return thrown.what_without_backtrace();
    }
    return "nothing was thrown";
  };
  StateDict tensors;
  tensors.insert("a", torch::ones({2}));
  write_safetensors(tensors, folder.file("one.safetensors"));

  CHECK(
      error(R"({"weight_map":{"a":"one.safetensors"}})") ==
      "nothing was thrown");
  for (const auto* name : {"../one.safetensors", "/etc/passwd", ".", ".."}) {
    CHECK_THAT(
        error(R"({"weight_map":{"a":")" + std::string(name) + R"("}})"),
        ContainsText("expected one beside it"));
  }
  CHECK_THAT(
      error(R"({"weight_map":{"b":"one.safetensors"}})"),
      ContainsText("has the key \"b\", but it has not"));
  CHECK_THAT(
      error(R"({"weight_map":{"a":"two.safetensors"}})"),
      ContainsText("there is no file"));
  CHECK_THAT(
      error(R"({"weight_map":{"a":"one.safetensors","a":"x"}})"),
      ContainsText("has the key \"a\" twice"));
  CHECK_THAT(error(R"({"a":1})"), ContainsText("it has no \"weight_map\""));
  CHECK_THAT(
      error("{" + std::string(100'000, '[')), ContainsText("none, or is cut"));
}

TEST_CASE("A prefix opens only the files that have its keys") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors.index.json");
  StateDict tensors;
  tensors.insert("layer.a", torch::ones({2}));
  write_safetensors(tensors, folder.file("one.safetensors"));
  std::ofstream(path) << R"({"weight_map":{"layer.a":"one.safetensors",)"
                         R"("other.b":"missing.safetensors"}})";
  CHECK(read_weight_file(path, "layer.").tensors.size() == 1);
  CHECK_THROWS_AS(read_weight_file(path), c10::Error);
}

TEST_CASE("An export archive says which of its numbers are wrong") {
  const auto archive = [](const std::string& dtype, const std::string& size) {
    const auto config = format_text(
        R"({{"config": {{"w": {{"path_name": "weight_0", "use_pickle": false,)"
        R"( "tensor_meta": {{"dtype": {}, "sizes": [{{"as_int": {}}}],)"
        R"( "strides": [{{"as_int": 1}}], "storage_offset": {{"as_int": 0}}}})"
        R"(}}}}}})",
        dtype,
        size);
    return fuzz::zip_of(
        {{"a/data/weights/model_weights_config.json", config},
         {"a/data/weights/weight_0", std::string(8, '\1')},
         {"a/archive_format", "pt2"}});
  };
  REQUIRE(read_checked(archive("7", "2")).size() == 1);
  const auto [dtype, size, message] =
      GENERATE(table<std::string, std::string, std::string>({
          {"7.5", "2", "integer of 64 bits as a dtype, but it has 7.5"},
          {"1e40", "2", "as a dtype, but it has 1e40"},
          {"\"7\"", "2", "as a dtype, but it has a text"},
          {"99", "2", "of the dtype number 99"},
          {"7", "2.0", "as a size, but it has 2.0"},
          {"7", "9223372036854775808", "as a size, but it has 92233720368547"},
          {"7", "-1", "damaged"},
          {"7", "3", "damaged"},
      }));
  CHECK_THAT(error_of(archive(dtype, size)), ContainsText(message));
}

TEST_CASE("A pickle that is nested deeply is read, and does not overflow") {
  std::string bytes = "\x80\x02";
  for (int i = 0; i < 1'000'000; ++i) {
    bytes += ']';
  }
  for (int i = 0; i < 999'999; ++i) {
    bytes += 'a';
  }
  bytes += '.';
  CHECK(Pickle(bytes).size() == 1'000'000);
}

TEST_CASE("A pickle may refer to itself") {
  // d = {}; d["a"] = d
  const std::string bytes =
      "\x80\x02}q\x01X\x01" + std::string(3, '\0') + "ah\x01s.";
  const Pickle pickle(bytes);
  CHECK(pickle.root().items().at(1) == &pickle.root());
}

TEST_CASE("A damaged pickle is refused") {
  using namespace std::string_literals;
  const auto [bytes, message] = GENERATE(table<std::string, std::string>({
      {""s, "ends too early"},
      {"\x80\x02"s, "ends too early"},
      {"\x80\x02X\xff\xff\xff\xff"s, "ends too early"},
      {"\x80\x07N."s, "has protocol 7"},
      {"\x80\x02."s, "takes a value that is not there"},
      {"\x80\x02t."s, "takes a mark that is not there"},
      {"\x80\x02h\x05."s, "recalls a value"},
      {"\x80\x02Nr\xff\xff\xff\x7f."s, "remembers a value as number"},
      {"\x80\x02NNR."s, "calls what is no function"},
      {"\x80\x02NNa."s, "to what is no list"},
      {"\x80\x02}(Nu."s, "keys and values to what is no dict"},
      {"\x80\x02I1\n."s, "operation 0x49"},
      {"\x80\x02]N(Nu."s, "no dict"},
      {"\x80\x02NNb."s, "gives attributes to what has none"},
  }));
  CAPTURE(message);
  try {
    const Pickle pickle(bytes);
    FAIL("nothing was thrown");
  } catch (const c10::Error& error) {
    CHECK_THAT(error.what_without_backtrace(), ContainsText(message));
  }
}

TEST_CASE("What the fuzzers found is read, or refused in words") {
  const std::string folder = TORCH_ATTENTION_SOURCE_DIR "/tests/golden/corpus/";
  const auto [reader, run] =
      GENERATE(table<std::string, int (*)(const uint8_t*, size_t)>({
          {"archive", fuzz_archive},
          {"config", fuzz_config},
          {"export_config", fuzz_export_config},
          {"pickle", fuzz_pickle},
          {"safetensors", fuzz_safetensors},
          {"sharded_index", fuzz_sharded_index},
      }));
  CAPTURE(reader);
  const ZipArchive corpus(MappedFile::open(folder + reader + ".zip"));
  CHECK(corpus.names().size() > 20);
  for (const auto& name : corpus.names()) {
    CAPTURE(name);
    const auto input = corpus.read(name);
    CHECK(run(input.data, input.size) == 0);
  }
}

} // namespace hostile_test
