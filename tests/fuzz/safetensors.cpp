// Fuzzes safetensors files.

#include <fuzz/fuzz.h>
#include <weights/files/safetensors.h>

using namespace torch_attention;
using namespace torch_attention::weights::files;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz::run([&] { return read_safetensors(fuzz::as_file(data, size)); });
}
