#include <torch_attention/weights/write.h>

#include <error_message.h>
#include <weights/files/write.h>

#include <c10/util/Exception.h>

namespace torch_attention {

using namespace weights::files;

void write_weights(
    const torch::OrderedDict<std::string, torch::Tensor>& tensors,
    const std::string& path,
    const WriteOptions& options) {
  const torch::NoGradGuard no_grad;
  try {
    write_weight_file(tensors, path, options);
  } catch (const std::exception& error) {
    throw_printable(format_text(
        "write_weights(\"{}\"): {}",
        escaped(path.c_str()),
        error_message(error)));
  }
}

} // namespace torch_attention
