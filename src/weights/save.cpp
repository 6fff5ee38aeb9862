#include <torch_attention/weights/save.h>

#include <error_message.h>
#include <weights/files/write.h>
#include <weights/layouts/convert.h>
#include <weights/plan.h>
#include <weights/save_tensors.h>
#include <weights/select.h>

#include <c10/util/Exception.h>

namespace torch_attention {

using namespace weights;
using namespace weights::files;
using namespace weights::layouts;

namespace {

StateDict as_written(StateDict tensors, const SaveOptions& options) {
  if (options.layout()) {
    for (const auto& item : tensors) {
      check_writable(item.key(), item.value());
    }
    tensors = layouts::convert(
                  tensors,
                  WeightLayout::automatic(),
                  *options.layout(),
                  options.num_heads())
                  .tensors;
  }
  StateDict result;
  const auto start = dotted(options.prefix());
  for (const auto& item : tensors) {
    result.insert(start + item.key(), item.value());
  }
  return result;
}

} // namespace

void weights::save_tensors(
    const StateDict& tensors,
    const std::string& path,
    const SaveOptions& options) {
  const torch::NoGradGuard no_grad;
  try {
    write_weight_file(
        as_written(tensors, options),
        path,
        WriteOptions().format(options.format()).dtype(options.dtype()));
  } catch (const std::exception& error) {
    throw_printable(format_text(
        "save_weights(\"{}\"): {}",
        escaped(path.c_str()),
        error_message(error)));
  }
}

void save_weights(
    const torch::nn::Module& module,
    const std::string& path,
    const SaveOptions& options) {
  save_tensors(state_dict(module), path, options);
}

} // namespace torch_attention
