// convert_weights: cases that tests/tools/convert_test.cpp leaves out.

#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>

namespace convert_weights_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE("convert_weights returns what it wrote and what it left out") {
  const TemporaryFolder folder;
  const auto path = folder.file("book.pt");
  const auto converted = convert_weights(
      golden("layouts/gpt2.safetensors"),
      path,
      ConvertOptions()
          .prefix("transformer.h.0.attn")
          .target(WeightLayout::book()));
  const auto written = read_weights(path);
  REQUIRE(written.keys() == converted.tensors.keys());
  for (const auto& item : written) {
    CHECK(item.value().equal(converted.tensors[item.key()]));
  }

  // Other values of the checkpoint do not count as left out.
  const auto state = convert_weights(
      golden("files/state-dict-key.pt"), folder.file("a.safetensors"));
  CHECK(state.tensors.size() > 0);
  CHECK(state.left_out.empty());
}

TEST_CASE("convert_weights says which file it read") {
  const TemporaryFolder folder;
  const auto path_of = [&](const std::string& from) {
    return convert_weights(golden(from), folder.file("a.safetensors")).path;
  };
  CHECK(
      path_of("files/plain.safetensors") == golden("files/plain.safetensors"));
  CHECK(
      path_of("pretrained/gpt2") ==
      golden("pretrained/gpt2/model.safetensors"));
}

TEST_CASE("convert_weights counts the bytes of all tensors") {
  const TemporaryFolder folder;
  uint64_t done = 0;
  uint64_t total = 0;
  convert_weights(
      golden("layouts/bert.safetensors"),
      folder.file("a.weights"),
      ConvertOptions()
          .format(FileFormat::kSafetensors)
          .progress([&](uint64_t bytes, uint64_t of_all) {
            done += bytes;
            total = of_all;
          }));
  CHECK(done > 0);
  CHECK(done == total);
}

TEST_CASE("convert_weights says which file cannot be converted") {
  const TemporaryFolder folder;
  THROWS_WITH(
      convert_weights(
          golden("files/plain.safetensors"),
          folder.file("a.pt"),
          ConvertOptions().target(WeightLayout::book())),
      "convert_weights(\"" + golden("files/plain.safetensors") + "\"): ");
}

} // namespace convert_weights_test
