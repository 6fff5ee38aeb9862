#include <torch_attention/weights/write.h>

#include <error_message.h>
#include <weights/files/write.h>
#include <weights/write_stored.h>

#include <c10/util/Exception.h>

namespace torch_attention {

namespace weights {

void write_stored(
    const StateDict& tensors,
    const files::StoredTensors& stored,
    const std::string& path,
    const WriteOptions& options) {
  const torch::NoGradGuard no_grad;
  try {
    files::write_weight_file(tensors, path, options, stored);
  } catch (const std::exception& error) {
    throw_printable(format_text(
        "write_weights(\"{}\"): {}",
        escaped(path.c_str()),
        error_message(error)));
  }
}

} // namespace weights

void write_weights(
    const torch::OrderedDict<std::string, torch::Tensor>& tensors,
    const std::string& path,
    const WriteOptions& options) {
  weights::write_stored(tensors, /*stored=*/{}, path, options);
}

} // namespace torch_attention
