// Fuzzes whole files: torch.save, TorchScript, torch.export, and anything else.

#include <fuzz/fuzz.h>

namespace archive_fuzzer {

using namespace torch_attention;
using namespace torch_attention::weights;

FUZZ_TARGET(fuzz_archive, const uint8_t* data, size_t size) {
  return fuzz::run(
      [&] { return read_weight_bytes(fuzz::as_file(data, size)); });
}

} // namespace archive_fuzzer
