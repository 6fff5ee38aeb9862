#include <weights/files/weight_file.h>

#include <check.h>
#include <format_text.h>

#include <algorithm>
#include <array>

namespace torch_attention::weights::files {

void check_key_length(std::string_view key) {
  TORCH_ATTENTION_CHECK(
      key.size() <= kMaxKeyLength,
      "the name \"{}\" has {} bytes, but the longest that is read or "
      "written has {}",
      shortened(key, 200),
      key.size(),
      kMaxKeyLength);
}

void choose_state_dict(
    const std::vector<std::string>& dicts,
    bool is_state_dict,
    WeightFile& file) {
  constexpr std::array kNames{
      "state_dict", "model_state_dict", "model", "module", "net", "weights"};
  std::vector<std::string> known;
  for (const auto* name : kNames) {
    if (std::find(dicts.begin(), dicts.end(), name) != dicts.end()) {
      known.emplace_back(name);
    }
  }
  // A state dict is flat: if there are tensors at the top level, only a dict
  // with a known name can be the state dict.
  if (known.empty() && is_state_dict) {
    return;
  }
  const auto& candidates = known.empty() ? dicts : known;
  if (candidates.size() == 1) {
    file.root = candidates.front();
  } else if (candidates.size() > 1) {
    file.ambiguity = format_text(
        "the file holds several state dicts: choose one by {}",
        prefix_choice(candidates));
  }
}

Bytes bytes_in_file(const WeightFile& file, const torch::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_conj() || tensor.is_neg() ||
      !tensor.is_non_overlapping_and_dense()) {
    return {};
  }
  const auto* data = static_cast<const uint8_t*>(tensor.data_ptr());
  for (const auto& mapped : file.mapped) {
    if (data >= mapped.data && data < mapped.data + mapped.size) {
      return mapped.part(
          static_cast<size_t>(data - mapped.data), tensor.nbytes());
    }
  }
  return {};
}

std::string text_of(const ForeignValue& value) {
  return format_text(
      "\"{}\" {}{}",
      value.path,
      value.reason,
      value.holds_tensors
          ? ", which was not made: the tensors in it are not read. Save only "
            "the state dict in Python: torch.save(model.state_dict(), path)"
          : "");
}

} // namespace torch_attention::weights::files
