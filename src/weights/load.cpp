#include <format_text.h>
#include <torch_attention/weights/load.h>

#include <error_message.h>
#include <weights/copy.h>
#include <weights/folder.h>
#include <weights/load_by_agreement.h>
#include <weights/plan.h>
#include <weights/select.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace torch_attention {

using namespace weights;

namespace weights {

namespace {

std::string failure(const std::string& path, const std::exception& error) {
  return format_text(
      "load_weights(\"{}\"): {}", escaped(path), error_message(error));
}

/// Returns every `count`-th key, from `index` on, in an order that all share.
std::vector<std::string> share_of(
    std::vector<std::string> keys,
    const ShareOfChecks& share) {
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  std::vector<std::string> own;
  for (size_t i = share.index; i < keys.size(); i += share.count) {
    own.push_back(std::move(keys[i]));
  }
  return own;
}

} // namespace

LoadReport load_by_agreement(
    torch::nn::Module& module,
    const std::string& path,
    const LoadOptions& options,
    const ShareOfChecks& share,
    const std::function<void(const std::string& error)>& agree) {
  files::WeightFile file;
  Plan plan;
  std::string error;
  try {
    const auto found = find_weight_file(path);
    file = read_below(
        found, options.prefix(), {Quantized::kJoined, options.adapter()});
    plan = make_plan(module, file, options);
    file.check(share.count == 1 ? plan.keys : share_of(plan.keys, share));
    plan.report.path = found;
    plan.report.format = file.format;
  } catch (const std::exception& wrong) {
    error = failure(path, wrong);
  }
  agree(error);
  if (!error.empty()) {
    throw_printable(error);
  }
  try {
    // The last step that can fail; if it does, the module has not changed.
    copy_all(module, plan.assignments, options, file);
  } catch (const std::exception& wrong) {
    throw_printable(failure(path, wrong));
  }
  return std::move(plan.report);
}

} // namespace weights

LoadReport load_weights(
    torch::nn::Module& module,
    const std::string& path,
    const LoadOptions& options) {
  const auto agree_alone = [](const std::string& /*error*/) {};
  return load_by_agreement(module, path, options, /*share=*/{}, agree_alone);
}

} // namespace torch_attention
