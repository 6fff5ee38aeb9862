// Fuzzes the configuration of a pretrained model. Seeds are
// build/fuzz/tests/golden/pretrained/*/config.json.

#include <fuzz/fuzz.h>

#include <support/temporary_folder.h>

#include <torch_attention/weights/pretrained.h>

#include <fstream>

namespace config_fuzzer {

using namespace torch_attention;

namespace {

/// Calls a function, which may throw c10::Error and nothing else.
template <typename Function>
void try_to(const Function& function) {
  try {
    function();
  } catch (const c10::Error&) {
    // Refused.
  }
}

} // namespace

FUZZ_TARGET(fuzz_config, const uint8_t* data, size_t size) {
  static const testing::TemporaryFolder temporary;
  const auto folder = temporary.path();
  std::ofstream(temporary.file("config.json"), std::ios::binary)
      .write(
          reinterpret_cast<const char*>(data),
          static_cast<std::streamsize>(size));
  for (const auto part :
       {PretrainedPart::kAuto,
        PretrainedPart::kEncoder,
        PretrainedPart::kDecoder,
        PretrainedPart::kText,
        PretrainedPart::kVision}) {
    try_to([&] { options_from_config(folder, 1, part); });
  }
  try_to([&] { cross_options_from_config(folder, 1); });
  try_to([&] { latent_options_from_config(folder, 1); });
  return 0;
}

} // namespace config_fuzzer
