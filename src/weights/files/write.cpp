#include <weights/files/write.h>

#include <c10/util/Exception.h>

namespace torch_attention {

torch::Tensor values_to_write(const torch::Tensor& tensor) {
  return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
}

void write_weight_file(
    const StateDict& tensors,
    const std::string& path,
    const Progress& progress) {
  const auto dot = path.rfind('.');
  const auto extension = dot == std::string::npos ? "" : path.substr(dot);
  if (extension == ".safetensors") {
    write_safetensors(tensors, path, progress);
  } else if (extension == ".pt" || extension == ".pth" || extension == ".bin") {
    write_torch_archive(tensors, path, progress);
  } else {
    TORCH_CHECK(
        false,
        "expected a file name that ends with .safetensors, .pt, .pth or .bin, "
        "but got \"",
        path,
        "\"");
  }
}

} // namespace torch_attention
