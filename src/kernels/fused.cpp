#include <kernels/attention.h>

namespace torch_attention::kernels {

torch::Tensor fused(const Attention& attention) {
  return is_tiled(attention) ? tiled(attention) : libtorch(attention);
}

} // namespace torch_attention::kernels
