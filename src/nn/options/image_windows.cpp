#include <torch_attention/nn/options/image_windows.h>

namespace torch_attention {

ImageWindowOptions::ImageWindowOptions(int64_t height, int64_t width)
    : height_(height), width_(width) {}

} // namespace torch_attention
