#include <torch_attention/weights/inspect.h>

#include <check.h>
#include <error_message.h>
#include <weights/folder.h>
#include <weights/layer_names.h>
#include <weights/layout_beside.h>
#include <weights/layouts/describe.h>
#include <weights/layouts/rules.h>
#include <weights/read.h>
#include <weights/select.h>

#include <algorithm>
#include <utility>

namespace torch_attention {

using namespace weights;

namespace {

/// Returns the size of a canonical tensor in a dimension; 0 if it is absent.
int64_t size_of(
    const WeightsInfo::Attention& attention,
    const std::string& key,
    size_t dimension) {
  const auto shape = attention.shapes.find(key);
  return shape == attention.shapes.end() || shape->second.size() <= dimension
      ? 0
      : shape->second[dimension];
}

/// Like `layout_beside`, but returns an error as a remark.
layouts::Decide decide_for(const files::WeightFile& file) {
  return [decide = layout_beside(file.path, file.start)](
             const std::string& scope,
             const WeightLayout& found) -> layouts::Decision {
    try {
      return decide(scope, found);
    } catch (const c10::Error& error) {
      return {found, error_message(error)};
    }
  };
}

WeightsInfo inspect(const std::string& path, const InspectOptions& options) {
  WeightsInfo info;
  info.path = find_weight_file(path);
  const auto file = options.prefix().empty()
      ? read_weight_file(info.path)
      : read_below(info.path, options.prefix());
  if (options.check()) {
    file.check(file.tensors.keys());
    file.check_rest();
  }
  info.format = file.format;
  info.state_dict = file.root;
  for (const auto& remark : {file.ambiguity, file.why_empty}) {
    if (!remark.empty()) {
      info.remarks.push_back(remark);
    }
  }
  for (const auto& item : file.tensors) {
    const auto& tensor = item.value();
    const auto* stored = file.stored.find(tensor);
    info.tensors.push_back(
        {item.key(),
         tensor.sizes().vec(),
         tensor.scalar_type(),
         stored == nullptr ? tensor.nbytes() : stored->bytes,
         stored == nullptr ? "" : stored->form});
  }
  info.other_values = file.others;
  for (const auto& value : file.foreign) {
    info.passed_over.push_back({value.path, value.reason});
  }
  for (const auto& [key, reason] : file.unreadable) {
    info.unreadable.push_back({key, reason});
  }
  info.attention = layouts::describe_attention(file.tensors, decide_for(file));
  auto names = info.attention.empty()
      ? layer_names_hint(file.tensors, file.start)
      : std::nullopt;
  if (names) {
    info.remarks.push_back(std::move(*names));
  }
  return info;
}

} // namespace

int64_t WeightsInfo::Attention::d_in() const {
  return size_of(*this, "W_query.weight", 1);
}

int64_t WeightsInfo::Attention::d_out() const {
  return size_of(*this, "W_query.weight", 0);
}

int64_t WeightsInfo::Attention::context_length() const {
  return size_of(*this, layouts::kMaskKey, 0);
}

int64_t WeightsInfo::Attention::num_kv_heads(int64_t num_heads) const {
  const bool is_possible =
      std::find(
          possible_num_heads.begin(), possible_num_heads.end(), num_heads) !=
      possible_num_heads.end();
  TORCH_ATTENTION_CHECK(
      is_possible && num_heads > 0,
      "WeightsInfo: expected num_heads to be one of {}, but got {}",
      fmt::join(possible_num_heads, ", "),
      num_heads);
  const auto head_dim = d_out() / num_heads;
  return head_dim == 0 ? num_heads
                       : size_of(*this, "W_key.weight", 0) / head_dim;
}

bool WeightsInfo::Attention::qkv_bias() const {
  return shapes.count("W_query.bias") > 0;
}

bool WeightsInfo::Attention::out_proj() const {
  return shapes.count("out_proj.weight") > 0;
}

WeightsInfo inspect_weights(
    const std::string& path,
    const InspectOptions& options) {
  try {
    return inspect(path, options);
  } catch (const std::exception& error) {
    throw_printable(format_text(
        "inspect_weights(\"{}\"): {}", escaped(path), error_message(error)));
  }
}

} // namespace torch_attention
