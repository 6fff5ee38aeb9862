// Fuzzes GGUF files, and computes the values of their tensors.

#include <fuzz/fuzz.h>
#include <weights/files/gguf.h>

namespace gguf_fuzzer {

using namespace torch_attention;
using namespace torch_attention::weights::files;

FUZZ_TARGET(fuzz_gguf, const uint8_t* data, size_t size) {
  return fuzz::run([&] {
    auto file = read_gguf(fuzz::as_file(data, size));
    for (const auto& item : file.tensors) {
      file.stored.fill(item.value());
    }
    return file;
  });
}

} // namespace gguf_fuzzer
