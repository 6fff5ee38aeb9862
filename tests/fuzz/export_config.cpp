// Fuzzes the description of the weights in a torch.export archive.

#include <fuzz/fuzz.h>

namespace export_config_fuzzer {

using namespace torch_attention;
using namespace torch_attention::weights;

FUZZ_TARGET(fuzz_export_config, const uint8_t* data, size_t size) {
  const auto file = fuzz::zip_of(
      {{"a/data/weights/model_weights_config.json",
        std::string(reinterpret_cast<const char*>(data), size)},
       {"a/data/weights/weight_0", std::string(48, '\1')},
       {"a/data/weights/weight_1", std::string(64, '\1')},
       {"a/archive_format", "pt2"}});
  return fuzz::run([&] {
    return read_weight_bytes(fuzz::as_file(file.data(), file.size()));
  });
}

} // namespace export_config_fuzzer
