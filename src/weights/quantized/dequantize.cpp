#include <weights/quantized/dequantize.h>

#include <weights/quantized/awq.h>
#include <weights/quantized/bitsandbytes.h>
#include <weights/quantized/compressed_tensors.h>
#include <weights/quantized/conv1d.h>
#include <weights/quantized/fp8.h>
#include <weights/quantized/gptq.h>
#include <weights/quantized/group.h>
#include <weights/quantized/refused.h>
#include <weights/quantized/settings.h>
#include <weights/quantized/torchao.h>
#include <weights/quantized/torchao_names.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch_attention::weights::quantized {

namespace {

using KeysOfWeights = std::unordered_map<std::string, std::vector<std::string>>;

/// Returns the groups of a file, in its order.
std::vector<Group> groups_of(
    const files::WeightFile& file,
    const TorchaoNames& names) {
  std::vector<Group> groups;
  std::unordered_map<std::string, size_t> places;
  for (const auto& item : file.tensors) {
    auto found = names.field_of(item.key());
    if (!found) {
      found = field_of(item.key());
    }
    if (!found) {
      continue;
    }
    const auto [place, is_new] = places.emplace(found->name(), groups.size());
    if (is_new) {
      groups.emplace_back();
      groups.back().start = std::move(found->start);
      groups.back().parameter = std::move(found->parameter);
    }
    auto& group = groups[place->second];
    group.keys.push_back(item.key());
    const auto* stored = file.stored.find(item.value());
    if (stored != nullptr && group.stored_as.empty()) {
      group.stored_as = stored->form;
    }
    group.fields.emplace(std::move(found->field), item.value());
  }
  return groups;
}

/// Returns the library that stores weights under such names, and that is not
/// read; "" if there is none.
std::string foreign_form(const Group& group) {
  if (group.has("W_q")) {
    return "hqq";
  }
  if (group.has("weight._data")) {
    return "quanto";
  }
  if (group.has("codes") && group.has("codebooks")) {
    return "aqlm";
  }
  if (group.has("compressed") && group.has("bitmask")) {
    return "compressed-tensors (sparse)";
  }
  return "";
}

bool is_float_of_byte(torch::ScalarType dtype) {
  return c10::isFloatingType(dtype) && c10::elementSize(dtype) == 1;
}

/// Returns whether a dtype is of integers, or of numbers of a byte, which may
/// need a scale.
bool may_need_scale(torch::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/false) ||
      is_float_of_byte(dtype);
}

/// Returns whether a weight is of integers.
bool is_integer_weight(const Group& group) {
  const auto* weight = group.find("weight");
  return weight != nullptr &&
      c10::isIntegralType(weight->scalar_type(), /*includeBool=*/false);
}

/// Returns whether a group is a weight that compressed-tensors stores.
bool is_compressed(const Group& group, const Settings& settings) {
  return group.has("weight_packed") ||
      (settings.method() == "compressed-tensors" &&
       (is_integer_weight(group) || is_scaled_fp8(group, settings)));
}

/// Throws `Refused` if the name of the weight is not free.
void check_no_weight(const Group& group) {
  refuse_unless(
      !group.has("weight"),
      "is quantized, but there is a tensor of this name, too");
}

/// Returns the values of a weight whose integers are called `qweight`.
files::StoredValues read_qweight(const Group& group, const Settings& settings) {
  check_no_weight(group);
  refuse_unless(
      settings.exist(),
      "is quantized by GPTQ or AWQ, but there is no configuration that says in "
      "which form");
  return settings.method() == "awq" ? read_awq(group, settings)
                                    : read_gptq(group, settings);
}

/// Throws `Refused` for a weight that no scheme takes and that is not plain:
/// its own dtype or a tensor beside it tells.
void check_not_scaled(const Group& group, const Settings& settings) {
  const auto* weight = group.find("weight");
  if (weight == nullptr) {
    return;
  }
  const bool has_scale = group.has("weight_scale") ||
      group.has("weight_scale_inv") || group.has("scale_weight") ||
      group.has("weight_scales");
  const bool needs_scale = may_need_scale(weight->scalar_type());
  refuse_unless(
      needs_scale || !has_scale,
      "is {} and has a scale beside it, which may or may not have been applied",
      torch::toString(weight->scalar_type()));
  refuse_unless(
      !needs_scale || (!settings.exist() && !has_scale),
      "is quantized by {}, which is not read in this form",
      settings.exist() ? format_text("\"{}\"", settings.method())
                       : "an unknown method");
}

/// Throws `Refused` for a group with a tensor that the file stores in another
/// form, as GGUF and distributed checkpoints do, unless it is a weight alone.
void check_is_alone(const Group& group) {
  const auto* weight = group.find("weight");
  refuse_unless(
      group.fields.size() == 1 && weight != nullptr &&
          !may_need_scale(weight->scalar_type()),
      "is quantized, and a part of it is stored as {}, which is not joined",
      group.stored_as);
}

/// Returns the values of a group; none if it is not quantized. Throws `Refused`
/// if it is not read.
std::optional<files::StoredValues> values_of(
    const Group& group,
    const Settings& settings,
    const TorchaoNames& names) {
  if (const auto* description = names.find(group.name())) {
    return read_torchao(group, *description, settings);
  }
  refuse_unless(
      !group.has_start(kTorchaoStart),
      "is quantized by \"torchao\", but the header of the file does not say "
      "how");
  const auto foreign = foreign_form(group);
  refuse_unless(
      foreign.empty(), "is quantized by \"{}\", which is not read", foreign);
  if (!group.stored_as.empty()) {
    check_is_alone(group);
    return std::nullopt;
  }
  if (group.has("qweight")) {
    return read_qweight(group, settings);
  }
  if (is_compressed(group, settings)) {
    return read_compressed(group, settings);
  }
  if (is_four_bit(group)) {
    return read_four_bit(group, settings);
  }
  if (group.has("SCB")) {
    return read_llm_int8(group, settings);
  }
  if (is_scaled_fp8(group, settings)) {
    return read_fp8(group, settings);
  }
  check_not_scaled(group, settings);
  return std::nullopt;
}

/// Returns why a tensor outside of the groups may not be the weight itself; ""
/// if nothing suggests that.
std::string why_scaled(
    const std::string& key,
    const torch::Tensor& tensor,
    const StateDict& tensors,
    const Settings& settings) {
  const auto dtype = tensor.scalar_type();
  const bool has_scale = may_need_scale(dtype) &&
      (tensors.contains(key + "_scale") ||
       tensors.contains(key + "_scale_inv"));
  return has_scale || (is_float_of_byte(dtype) && settings.exist())
      ? format_text(
            "is {}, and quantized in a form that is not read",
            torch::toString(dtype))
      : "";
}

/// Returns whether a tensor is a scale for keys or values in a cache, which
/// attention with computed weights does not need.
bool scales_cache(const std::string& key, const torch::Tensor& tensor) {
  return (ends_with(key, ".k_scale") || ends_with(key, ".v_scale")) &&
      tensor.numel() == 1 && tensor.is_floating_point();
}

/// Replaces the tensors of each joined weight by it.
StateDict with_joined(
    const StateDict& tensors,
    const KeysOfWeights& joined,
    const std::unordered_map<std::string, torch::Tensor>& weights) {
  std::unordered_map<std::string, std::string> names;
  for (const auto& [name, keys] : joined) {
    for (const auto& key : keys) {
      names.emplace(key, name);
    }
  }
  StateDict result;
  for (const auto& item : tensors) {
    const auto found = names.find(item.key());
    if (found == names.end()) {
      if (!scales_cache(item.key(), item.value())) {
        result.insert(item.key(), item.value());
      }
    } else if (!result.contains(found->second)) {
      result.insert(found->second, weights.at(found->second));
    }
  }
  return result;
}

/// Returns the names of joined weights.
std::set<std::string> names_of(const KeysOfWeights& joined) {
  std::set<std::string> names;
  for (const auto& item : joined) {
    names.insert(item.first);
  }
  return names;
}

/// Returns `WeightFile::check` for the new names.
std::function<void(const std::vector<std::string>& keys)> check_of(
    std::function<void(const std::vector<std::string>& keys)> check,
    KeysOfWeights joined) {
  return [check = std::move(check),
          joined = std::move(joined)](const std::vector<std::string>& keys) {
    std::vector<std::string> stored;
    for (const auto& key : keys) {
      const auto found = joined.find(key);
      if (found == joined.end()) {
        stored.push_back(key);
      } else {
        stored.insert(stored.end(), found->second.begin(), found->second.end());
      }
    }
    check(stored);
  };
}

} // namespace

bool may_be_quantized(const files::WeightFile& file) {
  return !TorchaoNames(file.metadata).empty() ||
      std::any_of(
          file.tensors.begin(), file.tensors.end(), [](const auto& item) {
            const auto dtype = item.value().scalar_type();
            const auto field = field_of(item.key());
            return (field &&
                    (may_need_scale(dtype) || field->field != "weight")) ||
                is_float_of_byte(dtype);
          });
}

std::string quantized_weight(
    const files::WeightFile& file,
    const Json* quantization) {
  auto joined = file;
  join_quantized(joined, quantization);
  if (!joined.quantization.refused.empty()) {
    return *joined.quantization.refused.begin();
  }
  for (const auto& item : joined.tensors) {
    if (joined.stored.find(item.value()) != nullptr &&
        file.stored.find(item.value()) == nullptr) {
      return item.key();
    }
  }
  return "";
}

std::string torchao_weight(const files::WeightFile& file) {
  const TorchaoNames names(file.metadata);
  for (const auto& item : file.tensors) {
    if (const auto field = names.field_of(item.key())) {
      return field->name();
    }
  }
  return "";
}

void join_quantized(files::WeightFile& file, const Json* quantization) {
  const Settings settings(quantization);
  file.quantization.method = settings.method();
  const auto refuse = [&](const std::string& key, std::string reason) {
    file.unreadable.emplace_back(key, std::move(reason));
    file.quantization.refused.insert(key);
  };
  KeysOfWeights joined;
  std::unordered_map<std::string, torch::Tensor> weights;
  const TorchaoNames names(file.metadata);
  for (auto& group : groups_of(file, names)) {
    try {
      auto values = values_of(group, settings, names);
      if (values) {
        values->bytes = group.bytes();
        for (const auto& [field, tensor] : group.fields) {
          values->source.push_back(files::bytes_in_file(file, tensor));
        }
        weights.emplace(group.name(), file.stored.add(std::move(*values)));
        joined.emplace(group.name(), std::move(group.keys));
      }
    } catch (const Refused& reason) {
      refuse(group.name(), reason.what());
    }
  }
  for (const auto& item : file.tensors) {
    const bool is_grouped = names.field_of(item.key()) || field_of(item.key());
    auto reason = is_grouped
        ? std::string()
        : why_scaled(item.key(), item.value(), file.tensors, settings);
    if (!reason.empty()) {
      refuse(item.key(), std::move(reason));
    }
  }
  for (const auto& name : quantized_in_part(file.tensors, names_of(joined))) {
    joined.erase(name);
    refuse(
        name,
        "belongs to an attention of which only some weights are quantized: "
        "these are (out, in), and others may be (in, out)");
  }
  if (joined.empty()) {
    return;
  }
  file.tensors = with_joined(file.tensors, joined, weights);
  if (file.check) {
    file.check = check_of(std::move(file.check), std::move(joined));
  }
}

} // namespace torch_attention::weights::quantized
