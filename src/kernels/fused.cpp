#include <kernels/attention.h>

namespace torch_attention::kernels {

torch::Tensor fused(const Attention& attention) {
  if (is_tiled(attention)) {
    return tiled(attention);
  }
  return is_libtorch(attention) ? libtorch(attention)
                                : std::get<0>(reference(attention));
}

} // namespace torch_attention::kernels
