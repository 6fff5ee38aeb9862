#include <support/files.h>
#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <tools/load_script.h>
#include <tools/swap_model.h>

#include <torch/script.h>

#include <sstream>

namespace load_script_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::tools;

namespace {

void write_all(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

torch::Tensor output_of(const std::string& path, const torch::Tensor& x) {
  auto model = load_script(path, torch::kCPU);
  model.eval();
  return model.forward({x}).toTensor();
}

} // namespace

TEST_CASE("Scripts are loaded whole, or not at all") {
  const auto path = golden("mha-h2-3to2-nobias-causal-f32-T6of6-eval.pt");
  const auto x = torch::rand({2, 6, 3});
  const auto expected = output_of(path, x);
  const auto bytes = read_all(path);
  const TemporaryFolder folder;
  const auto damaged = folder.file("damaged.pt");
  size_t refused = 0;
  size_t count = 0;
  constexpr size_t kStep = 11;
  constexpr size_t kBits = 8;
  for (size_t i = 0; i < bytes.size(); i += kStep) {
    CAPTURE(i);
    auto changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % kBits)));
    write_all(damaged, changed);
    ++count;
    torch::Tensor output;
    try {
      output = output_of(damaged, x);
    } catch (const c10::Error&) {
      ++refused;
      continue;
    }
    CHECK(torch::equal(output, expected));
  }
  // The rest are bytes between the records.
  CHECK(refused > count / 2);
}

TEST_CASE("swap writes nothing of a damaged model") {
  const auto path = golden("mha-h2-3to2-nobias-causal-f32-T6of6-eval.pt");
  const auto bytes = read_all(path);
  const TemporaryFolder folder;
  const auto damaged = folder.file("damaged.pt");
  const auto swapped = folder.file("swapped.pt");
  std::ostringstream out;
  REQUIRE(swap_model(path, swapped, "", out));
  const auto before = read_all(swapped);
  write_all(damaged, bytes.substr(0, bytes.size() - 1));
  CHECK_THROWS_AS(swap_model(damaged, swapped, "", out), c10::Error);
  CHECK(read_all(swapped) == before);
  THROWS_WITH(
      swap_model(golden("files/plain.safetensors"), swapped, "", out),
      "expected a TorchScript model, which can be run, but");
  CHECK(read_all(swapped) == before);
}

} // namespace load_script_test
