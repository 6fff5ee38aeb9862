#include <weights/pretrained/window_bias.h>

#include <weights/pretrained/stored_floats.h>
#include <weights/select.h>

#include <ATen/core/grad_mode.h>

namespace torch_attention::weights::pretrained {

void load_window_bias(
    const std::string& file,
    const std::string& path,
    const torch::Tensor& target) {
  const auto below = read_below(file, path);
  const auto& table = stored_floats(
      below, path, "self.relative_position_bias_table", target.sizes());
  const torch::NoGradGuard no_grad;
  target.copy_(table);
}

} // namespace torch_attention::weights::pretrained
