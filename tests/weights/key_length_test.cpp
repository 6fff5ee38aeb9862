// Names that are too long for messages and maps.

#include <fuzz/fuzz.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <fstream>

namespace key_length_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr size_t kLongest = 65'536;

std::string safetensors_file(const std::string& key) {
  const auto header =
      "{\"" + key + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})";
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) +
      header;
}

std::string torch_file(const std::string& key) {
  const auto size = static_cast<uint32_t>(key.size());
  const auto pickle = "\x80\x02}X" +
      std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + key +
      "Ns.";
  return fuzz::zip_of({{"a/data.pkl", pickle}});
}

std::string export_file(const std::string& key) {
  return fuzz::zip_of(
      {{"a/data/weights/model_weights_config.json",
        R"({"config":{")" + key + R"(":{}}})"},
       {"a/archive_format", "pt2"}});
}

std::string index_file(const std::string& key) {
  return R"({"weight_map":{")" + key + R"(":"one.safetensors"}})";
}

std::string error_of(const std::string& bytes) {
  const TemporaryFolder folder;
  const auto path = folder.file("file");
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    read_weights(path);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

} // namespace

TEST_CASE("A name too long to be carried is refused with its length") {
  auto* const make =
      GENERATE(&safetensors_file, &torch_file, &export_file, &index_file);
  const auto message = error_of(make(std::string(kLongest + 1, 'k')));
  CHECK_THAT(
      message,
      ContainsText("read_weights(\"") &&
          ContainsText("has 65537 bytes, but the longest that is read or "
                       "written has 65536"));
  CHECK(message.size() < 1000);
  CHECK(
      error_of(make(std::string(kLongest, 'k'))).find("but the longest") ==
      std::string::npos);
}

TEST_CASE("A name that could not be read again is not written") {
  const TemporaryFolder folder;
  const auto* name = GENERATE("a.safetensors", "a.pt");
  const auto path = folder.file(name);
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  SECTION("one that is too long") {
    tensors.insert(std::string(kLongest + 1, 'k'), torch::ones({2}));
    THROWS_WITH(write_weights(tensors, path), "but the longest that is read");
    CHECK_FALSE(std::ifstream(path).good());
  }
  SECTION("the longest") {
    tensors.insert(std::string(kLongest, 'k'), torch::ones({2}));
    write_weights(tensors, path);
    CHECK(read_weights(path).keys() == tensors.keys());
  }
}

} // namespace key_length_test
