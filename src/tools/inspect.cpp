#include <tools/inspect.h>

#include <error_message.h>
#include <escape.h>
#include <format_text.h>
#include <tools/model_type.h>
#include <torch_attention/weights/dtype.h>
#include <torch_attention/weights/gguf.h>
#include <torch_attention/weights/inspect_pretrained.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <fstream>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

namespace torch_attention::tools {

namespace {

using OrderedJson = nlohmann::ordered_json;

uint64_t total_bytes(const WeightsInfo& info) {
  uint64_t bytes = 0;
  for (const auto& tensor : info.tensors) {
    bytes += tensor.bytes;
  }
  return bytes;
}

std::string size_text(uint64_t bytes) {
  constexpr double kKilo = 1000;
  auto value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const auto* next : {"kB", "MB", "GB", "TB"}) {
    if (value < kKilo) {
      break;
    }
    value /= kKilo;
    unit = next;
  }
  return *unit == 'B' ? format_text("{} B", bytes)
                      : format_text("{:.1f} {}", value, unit);
}

OrderedJson attention_json(const WeightsInfo::Attention& attention) {
  const auto& layouts = attention.layouts;
  const bool is_clear = layouts.size() == 1;
  OrderedJson shapes = OrderedJson::object();
  for (const auto& [key, shape] : attention.shapes) {
    shapes[key] = shape;
  }
  return {
      {"path", attention.path},
      {"layout", is_clear ? OrderedJson(layouts.front()) : OrderedJson()},
      {"layouts_that_fit", is_clear ? std::vector<std::string>() : layouts},
      {"possible_num_heads", attention.possible_num_heads},
      {"unknown_keys", attention.unknown_keys},
      {"remark", attention.remark},
      {"shapes", shapes}};
}

/// Returns whether a folder has a PEFT adapter.
bool has_adapter(const std::string& folder) {
  return std::ifstream(folder + "/adapter_config.json").good();
}

OrderedJson layers_json(const PretrainedInfo::Layers& found) {
  std::ostringstream part;
  part << found.part;
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? OrderedJson() : OrderedJson(text);
  };
  return {
      {"part", part.str()},
      {"model_type", found.model_type},
      {"numbers", found.numbers},
      {"is_cross", found.is_cross},
      {"is_latent", found.is_latent},
      {"is_relative", found.is_relative},
      {"is_longformer", found.is_longformer},
      {"needs_bias", found.needs_bias},
      {"needs_rotary", found.needs_rotary},
      {"needs_value_input", found.needs_value_input},
      {"has_image_blocks", found.has_image_blocks},
      {"has_image_windows", found.has_image_windows},
      {"description", found.description},
      {"options", text_or_null(found.options)},
      {"call", text_or_null(found.call)}};
}

/// Returns the layers of a folder's model, or the reason why its attention
/// cannot be loaded; null for a file of weights alone.
OrderedJson model_json(const std::string& path) {
  const auto type = model_type_in(path);
  if (type.empty() && !has_adapter(path) && !is_gguf(path)) {
    return {};
  }
  OrderedJson json = {
      {"model_type", type.empty() ? OrderedJson() : OrderedJson(type)},
      {"layers", OrderedJson::array()},
      {"refused", OrderedJson()}};
  try {
    for (const auto& found : inspect_pretrained(path).layers) {
      json["layers"].push_back(layers_json(found));
    }
  } catch (const std::exception& error) {
    json["refused"] = error_message(error);
  }
  return json;
}

void print_json(
    const WeightsInfo& info,
    const OrderedJson& model,
    std::ostream& out) {
  OrderedJson json = {
      {"format", info.format},
      {"state_dict", info.state_dict},
      {"bytes", total_bytes(info)},
      {"tensors", OrderedJson::array()},
      {"other_values", info.other_values},
      {"unreadable", OrderedJson::array()},
      {"passed_over", OrderedJson::array()},
      {"attention", OrderedJson::array()},
      {"model", model}};
  for (const auto& tensor : info.tensors) {
    json["tensors"].push_back(
        {{"key", tensor.key},
         {"shape", tensor.shape},
         {"dtype", dtype_name(tensor.dtype)},
         {"bytes", tensor.bytes},
         {"stored_as", tensor.stored_as}});
  }
  for (const auto& [key, reason] : info.unreadable) {
    json["unreadable"].push_back({{"key", key}, {"reason", reason}});
  }
  for (const auto& [key, reason] : info.passed_over) {
    json["passed_over"].push_back({{"key", key}, {"reason", reason}});
  }
  for (const auto& attention : info.attention) {
    json["attention"].push_back(attention_json(attention));
  }
  // Keys of a file may be invalid UTF-8, or have a terminal's control
  // sequences.
  out << json.dump(
             2,
             ' ',
             /*ensure_ascii=*/true,
             OrderedJson::error_handler_t::replace)
      << "\n";
}

void print_tensors(const WeightsInfo& info, std::ostream& out) {
  size_t width = 3;
  for (const auto& tensor : info.tensors) {
    width = std::max(width, escaped(tensor.key).size());
  }
  for (const auto& tensor : info.tensors) {
    out << format_text(
        "  {:<{}}  {:<16}  {:<9} {:>10}\n",
        escaped(tensor.key),
        width,
        format_text("({})", fmt::join(tensor.shape, ", ")),
        tensor.stored_as.empty() ? dtype_name(tensor.dtype)
                                 : escaped(tensor.stored_as),
        size_text(tensor.bytes));
  }
  for (const auto& key : info.other_values) {
    out << format_text("  {:<{}}  no tensor\n", escaped(key), width);
  }
  for (const auto* values : {&info.unreadable, &info.passed_over}) {
    for (const auto& [key, reason] : *values) {
      out << format_text(
          "  {:<{}}  {}\n", escaped(key), width, escaped(reason));
    }
  }
}

void print_attention(
    const WeightsInfo::Attention& attention,
    std::ostream& out) {
  const auto path =
      attention.path.empty() ? "the file itself" : escaped(attention.path);
  if (attention.layouts.size() != 1) {
    out << format_text(
        "  {}: several layouts fit: {}\n",
        path,
        fmt::join(attention.layouts, ", "));
    return;
  }
  out << format_text("  {}: layout {}", path, attention.layouts.front());
  const auto query = attention.shapes.find("W_query.weight");
  if (query != attention.shapes.end()) {
    out << format_text(", W_query ({})", fmt::join(query->second, ", "));
  }
  if (!attention.possible_num_heads.empty()) {
    out << format_text(
        ", {}{} heads",
        attention.lists_heads ? "" : "possibly ",
        fmt::join(attention.possible_num_heads, ", "));
  }
  if (!attention.unknown_keys.empty()) {
    out << format_text(
        "; loading refuses it for keys that the layout does not know: {}",
        list_text(attention.unknown_keys, ", "));
  }
  if (!attention.remark.empty()) {
    out << "; " << escaped(attention.remark);
  }
  out << "\n";
}

void print_text(const WeightsInfo& info, std::ostream& out) {
  out << format_text(
      "{}: {}, {} tensors, {}\n",
      escaped(info.path),
      info.format,
      info.tensors.size(),
      size_text(total_bytes(info)));
  if (!info.state_dict.empty()) {
    out << format_text("state dict: {}\n", escaped(info.state_dict));
  }
  for (const auto& remark : info.remarks) {
    out << escaped(remark) << "\n";
  }
  print_tensors(info, out);
}

void print_modules(const WeightsInfo& info, std::ostream& out) {
  out
      << (info.attention.empty() ? "no attention module found\n"
                                 : "attention modules:\n");
  for (const auto& attention : info.attention) {
    print_attention(attention, out);
  }
}

/// Returns the numbers as ranges, such as "0-4, 6".
std::string ranges_text(const std::vector<int64_t>& numbers) {
  std::vector<std::string> ranges;
  for (size_t begin = 0; begin < numbers.size();) {
    auto end = begin;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) {
      ++end;
    }
    ranges.push_back(
        begin == end ? format_text("{}", numbers[begin])
                     : format_text("{}-{}", numbers[begin], numbers[end]));
    begin = end + 1;
  }
  return format_text("{}", fmt::join(ranges, ", "));
}

/// Prints the attention of each layer. The call that loads several layers
/// follows the last of them.
void print_layers(const PretrainedInfo& model, std::ostream& out) {
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const auto& found = model.layers[i];
    if (found.numbers.empty()) {
      out << found.part << ": " << escaped(found.description) << "\n";
      continue;
    }
    if (found.is_cross) {
      out << "cross-attention ";
    } else if (found.part != PretrainedPart::kAuto) {
      out << found.part << " ";
    }
    out << format_text(
        "{} {}: {}\n",
        found.numbers.size() == 1 ? "layer" : "layers",
        ranges_text(found.numbers),
        escaped(found.description));
    if (!found.options.empty()) {
      out << found.options << "\n";
    }
    const bool is_last =
        i + 1 == model.layers.size() || model.layers[i + 1].call != found.call;
    if (is_last && !found.call.empty()) {
      out << found.call << "\n";
    }
  }
}

/// Prints why the attention of a folder's model cannot be loaded.
void print_refusal(const std::string& folder, std::ostream& out) {
  try {
    inspect_pretrained(folder);
  } catch (const std::exception& error) {
    out << error_message(error) << "\n";
  }
}

} // namespace

void inspect_file(
    const std::string& path,
    const InspectOptions& options,
    bool as_json,
    std::ostream& out) {
  const auto info = inspect_weights(path, options);
  if (as_json) {
    print_json(
        info, options.prefix().empty() ? model_json(path) : OrderedJson(), out);
  } else {
    print_text(info, out);
    const auto type = model_type_in(path);
    const bool is_known = is_known_type(type);
    if (options.prefix().empty() && is_known) {
      print_layers(inspect_pretrained(path), out);
    } else {
      if (has_adapter(path) || is_gguf(path) || (!type.empty() && !is_known)) {
        print_refusal(path, out);
      }
      print_modules(info, out);
    }
  }
}

} // namespace torch_attention::tools
