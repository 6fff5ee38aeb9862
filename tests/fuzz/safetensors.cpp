// Fuzzes safetensors files.

#include <fuzz/fuzz.h>
#include <weights/files/safetensors.h>

namespace safetensors_fuzzer {

using namespace torch_attention;
using namespace torch_attention::weights::files;

FUZZ_TARGET(fuzz_safetensors, const uint8_t* data, size_t size) {
  return fuzz::run([&] { return read_safetensors(fuzz::as_file(data, size)); });
}

} // namespace safetensors_fuzzer
