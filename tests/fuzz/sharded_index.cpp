// Fuzzes the index of a model in several safetensors files. One such file
// exists: "one.safetensors" with the keys a and b, in the current folder.

#include <fuzz/fuzz.h>
#include <weights/files/safetensors.h>
#include <weights/files/write.h>

#include <ATen/ops/ones.h>

namespace sharded_index_fuzzer {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::weights::files;

FUZZ_TARGET(fuzz_sharded_index, const uint8_t* data, size_t size) {
  static const bool written = [] {
    StateDict tensors;
    tensors.insert("a", at::ones({2, 3}));
    tensors.insert("b", at::ones({4}));
    write_safetensors(tensors, "one.safetensors");
    return true;
  }();
  static_cast<void>(written);
  return fuzz::run(
      [&] { return read_sharded(fuzz::as_file(data, size), "", ""); });
}

} // namespace sharded_index_fuzzer
