#include <weights/pretrained/stored_floats.h>

#include <check.h>
#include <format_text.h>

namespace torch_attention::weights::pretrained {

const torch::Tensor& stored_floats(
    const files::WeightFile& below,
    const std::string& path,
    const std::string& name,
    torch::IntArrayRef sizes) {
  const auto key = format_text("{}.{}", path, name);
  const auto* found = below.tensors.find(name);
  TORCH_ATTENTION_CHECK(
      found != nullptr,
      "expected \"{}\" in \"{}\", which has none",
      key,
      below.path);
  TORCH_ATTENTION_CHECK(
      found->is_floating_point() && found->element_size() > 1 &&
          found->sizes() == sizes,
      "expected a floating-point \"{}\" of shape {} in \"{}\", but got one "
      "of {} and {}",
      key,
      c10::str(sizes),
      below.path,
      c10::str(found->sizes()),
      c10::str(found->scalar_type()));
  below.check({name});
  return *found;
}

} // namespace torch_attention::weights::pretrained
