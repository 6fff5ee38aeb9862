#include <format_text.h>
#include <torch_attention/weights/load.h>

#include <error_message.h>
#include <weights/copy.h>
#include <weights/folder.h>
#include <weights/plan.h>
#include <weights/select.h>

#include <c10/util/Exception.h>

#include <utility>

namespace torch_attention {

using namespace weights;

LoadReport load_weights(
    torch::nn::Module& module,
    const std::string& path,
    const LoadOptions& options) {
  try {
    const auto found = find_weight_file(path);
    const auto file = read_below(found, options.prefix());
    auto plan = make_plan(module, file, options);
    file.check(plan.keys);
    plan.report.path = found;
    plan.report.format = file.format;
    // The last step that can fail: when it is done, the module has changed.
    copy_all(module, plan.assignments, options, file);
    return std::move(plan.report);
  } catch (const std::exception& error) {
    C10_THROW_ERROR(
        Error,
        format_text("load_weights(\"{}\"): {}", path, error_message(error)));
  }
}

} // namespace torch_attention
