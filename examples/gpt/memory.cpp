#include "memory.h"

#include <torch/utils.h>

#include <cstdint>
#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace gpt {

namespace {

/// Moves all parameters into one piece of memory.
void join_weights(torch::nn::Module& model) {
  constexpr int64_t kAlignment = 64;
  const auto rounded = [](int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  int64_t size = 0;
  for (const auto& parameter : model.parameters()) {
    size += rounded(static_cast<int64_t>(parameter.nbytes()));
  }
  const auto memory = torch::empty({size}, torch::kByte);
  int64_t begin = 0;
  for (auto& parameter : model.parameters()) {
    const auto bytes = static_cast<int64_t>(parameter.nbytes());
    const auto place = memory.narrow(0, begin, bytes)
                           .view(parameter.scalar_type())
                           .view(parameter.sizes());
    place.copy_(parameter.detach());
    parameter.set_data(place);
    begin += rounded(bytes);
  }
}

} // namespace

void expect_weights() {
  // LibTorch's own switch.
  ::setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);
}

void keep_freed_memory() {
#if defined(__GLIBC__)
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

std::shared_ptr<torch_attention::models::LanguageModel> load_model(
    const std::string& folder,
    torch::Dtype dtype) {
  using torch_attention::models::PretrainedModelOptions;
  auto model = torch_attention::models::language_model_from_pretrained(
      folder, PretrainedModelOptions().dtype(dtype));
  join_weights(*model);
  return model;
}

} // namespace gpt
