// Fuzzes the pickle of a torch.save file or a TorchScript archive; the first
// byte decides which.

#include <fuzz/fuzz.h>

namespace pickle_fuzzer {

using namespace torch_attention;
using namespace torch_attention::weights;

FUZZ_TARGET(fuzz_pickle, const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string pickle(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::pair<std::string, std::string>> records{
      {"a/data.pkl", pickle}};
  for (const auto* name : {"a/data/0", "a/data/1", "a/data/2", "a/data/3"}) {
    records.emplace_back(name, std::string(48, '\1'));
  }
  if (data[0] % 2 == 1) {
    records.emplace_back("a/constants.pkl", "");
  }
  const auto file = fuzz::zip_of(records);
  return fuzz::run([&] {
    return read_weight_bytes(fuzz::as_file(file.data(), file.size()));
  });
}

} // namespace pickle_fuzzer
