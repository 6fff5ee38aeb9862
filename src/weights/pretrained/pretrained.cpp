#include <torch_attention/weights/pretrained.h>

#include <error_message.h>
#include <format_text.h>
#include <torch_attention/weights/load.h>
#include <weights/folder.h>
#include <weights/pretrained/families.h>
#include <weights/read.h>
#include <weights/select.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <exception>
#include <ostream>
#include <set>

namespace torch_attention {

using namespace weights;

namespace {

/// `path` as it is in a file with these keys: with what comes before it.
std::string whole_path(
    const std::vector<std::string>& keys,
    const std::string& path,
    const std::string& file) {
  std::set<std::string> found;
  const auto inner = path + ".";
  for (const auto& key : keys) {
    const auto at = key.find(inner);
    if (at == 0 || (at != std::string::npos && key[at - 1] == '.')) {
      found.insert(key.substr(0, at + path.size()));
    }
  }
  TORCH_CHECK(
      !found.empty(),
      format_text(
          "expected keys of \"{}\" in \"{}\", which has attention at {}",
          path,
          file,
          quoted_list(attention_paths(keys))));
  TORCH_CHECK(
      found.size() == 1,
      format_text(
          "expected one \"{}\" in \"{}\", which has {}",
          path,
          file,
          quoted_list({found.begin(), found.end()})));
  return *found.begin();
}

MultiHeadAttention load(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options) {
  pretrained::ModelConfig config(folder);
  auto described = pretrained::describe_attention(config, layer);
  if (options.context_length()) {
    described.options.context_length(*options.context_length());
  }
  const auto file = find_weight_file(folder);
  const auto path =
      whole_path(whole_keys(read_weight_file(file)), described.path, file);
  MultiHeadAttention attention(described.options);
  attention->eval();
  const auto report = load_weights(
      *attention,
      file,
      LoadOptions()
          .prefix(path)
          .layout(described.layout)
          .dtype(options.dtype())
          .device(options.device()));
  if (options.log() != nullptr) {
    *options.log() << config.path() << ": layer " << layer << " of "
                   << described.model_type << "\n"
                   << attention << "\n"
                   << report;
  }
  return attention;
}

} // namespace

MultiHeadAttention attention_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options) {
  try {
    return load(folder, layer, options);
  } catch (const std::exception& error) {
    C10_THROW_ERROR(
        Error,
        format_text(
            "attention_from_pretrained(\"{}\", {}): {}",
            folder,
            layer,
            error_message(error)));
  }
}

MultiHeadAttentionOptions options_from_config(
    const std::string& path,
    int64_t layer) {
  try {
    pretrained::ModelConfig config(path);
    return pretrained::describe_attention(config, layer).options;
  } catch (const std::exception& error) {
    C10_THROW_ERROR(
        Error,
        format_text(
            "options_from_config(\"{}\", {}): {}",
            path,
            layer,
            error_message(error)));
  }
}

std::vector<std::string> pretrained_model_types() {
  return pretrained::known_model_types();
}

} // namespace torch_attention
