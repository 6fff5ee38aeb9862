#include <weights/causal_masks.h>

#include <weights/state_dict.h>
#include <weights/text.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <vector>

namespace torch_attention::weights {

using namespace files;
using namespace layouts;

bool is_mask_key(const std::string& key) {
  return key == "mask" || ends_with(key, ".mask");
}

// Compares blocks of rows, since a copy of the whole may be large.
bool is_causal_mask(const torch::Tensor& tensor) {
  if (tensor.dim() != 2 || tensor.size(0) != tensor.size(1)) {
    return false;
  }
  const auto size = tensor.size(0);
  if (size > 1 && repeats_elements(tensor)) {
    return false; // such a mask may be huge
  }
  constexpr int64_t kBlock = int64_t{1} << 20;
  const auto step = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, size));
  for (int64_t row = 0; row < size; row += step) {
    const auto rows =
        tensor.narrow(0, row, std::min(step, size - row)).to(torch::kFloat);
    if (!rows.equal(at::ones_like(rows).triu(1 + row))) {
      return false;
    }
  }
  return true;
}

bool are_causal_masks(const Source& source, const StoredTensors& stored) {
  std::vector<torch::Tensor> parts;
  for (const auto& part : source.parts) {
    stored.fill(part.tensor);
    parts.push_back(part.tensor);
  }
  return is_causal_mask(at::cat(parts)) &&
      std::all_of(
             source.copies.begin(), source.copies.end(), [&](const Part& copy) {
               stored.fill(copy.tensor);
               return is_causal_mask(copy.tensor);
             });
}

std::unordered_set<std::string> causal_masks(const torch::nn::Module& module) {
  std::unordered_set<std::string> keys;
  for (const auto& buffer : module.named_buffers()) {
    if (is_mask_key(buffer.key()) && is_causal_mask(buffer.value())) {
      keys.insert(buffer.key());
    }
  }
  return keys;
}

} // namespace torch_attention::weights
