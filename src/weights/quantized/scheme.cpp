#include <weights/quantized/scheme.h>

#include <weights/quantized/refused.h>
#include <weights/text.h>

#include <algorithm>
#include <tuple>

namespace torch_attention::weights::quantized {

namespace {

/// Throws `Refused`, which names a field of the configuration.
[[noreturn]] void refuse_field(const char* field, const Json& value) {
  throw Refused(format_text(
      "is quantized by \"compressed-tensors\" with \"{}\": {}, which is not "
      "read",
      field,
      value.shown(100)));
}

int64_t positive(const Json& weights, const char* field) {
  const auto value = weights.get(field).as_integer().value_or(0);
  if (value <= 0) {
    refuse_field(field, weights.get(field));
  }
  return value;
}

/// Returns a text in lower case; "" for null.
std::string text_of(const Json& object, const char* field) {
  const auto& value = object.get(field);
  if (!value.is_null() && !value.is_text()) {
    refuse_field(field, value);
  }
  return lower(value.as_text().value_or(""));
}

/// Returns the strategy, which follows from `group_size` if there is none.
std::string strategy_of(const Json& weights) {
  auto strategy = text_of(weights, "strategy");
  if (!strategy.empty()) {
    return strategy;
  }
  const auto& size = weights.get("group_size");
  if (size.is_null()) {
    return "tensor";
  }
  return size.as_integer() == -1 ? "channel" : "group";
}

void read_strategy(const Json& weights, Scheme& scheme) {
  scheme.strategy = strategy_of(weights);
  if (scheme.strategy == "group" || scheme.strategy == "tensor_group") {
    scheme.group_size = positive(weights, "group_size");
  } else if (scheme.strategy == "block") {
    const auto& structure = weights.get("block_structure");
    const auto sizes = two_positive(structure);
    if (!sizes) {
      refuse_field("block_structure", structure);
    }
    scheme.block = *sizes;
  } else if (scheme.strategy != "tensor" && scheme.strategy != "channel") {
    refuse_field("strategy", weights.get("strategy"));
  }
}

Scheme scheme_of(const Json& weights) {
  Scheme scheme;
  scheme.bits =
      weights.contains("num_bits") ? positive(weights, "num_bits") : 8;
  const auto type = text_of(weights, "type");
  if (type != "" && type != "int" && type != "float") {
    refuse_field("type", weights.get("type"));
  }
  scheme.is_float = type == "float";
  scheme.is_symmetric = weights.get("symmetric").as_flag().value_or(true);
  const auto& dynamic = weights.get("dynamic");
  if (!dynamic.is_null() && dynamic.as_flag() != false) {
    refuse_field("dynamic", dynamic);
  }
  read_strategy(weights, scheme);
  return scheme;
}

/// Throws `Refused` if weights are sparse, or transformed.
void check_only_quantized(const Settings& settings) {
  const auto& sparsity = settings.get("sparsity_config");
  const auto format = text_of(sparsity, "format");
  if (!format.empty() && format != "dense") {
    refuse_field("sparsity_config", sparsity);
  }
  const auto& transforms = settings.get("transform_config");
  if (!transforms.get("config_groups").fields().empty()) {
    refuse_field("transform_config", transforms);
  }
}

} // namespace

bool Scheme::operator==(const Scheme& other) const {
  const auto all = [](const Scheme& scheme) {
    return std::tie(
        scheme.bits,
        scheme.is_float,
        scheme.is_symmetric,
        scheme.strategy,
        scheme.group_size,
        scheme.block,
        scheme.format);
  };
  return all(*this) == all(other);
}

bool Scheme::is_in(std::initializer_list<const char*> formats) const {
  return format.empty() ||
      std::find(formats.begin(), formats.end(), format) != formats.end();
}

Grid Scheme::grid(int64_t rows, int64_t columns) const {
  Grid grid;
  grid.rows = rows;
  grid.columns = columns;
  grid.block_columns = columns;
  if (strategy == "tensor") {
    grid.block_rows = rows;
  } else if (strategy == "block") {
    grid.block_rows = block.first;
    grid.block_columns = block.second;
  } else if (group_size > 0) {
    refuse_unless(
        columns % group_size == 0,
        "is quantized by \"compressed-tensors\" in groups of {}, which do not "
        "divide {} columns",
        group_size,
        columns);
    grid.block_columns = group_size;
  }
  return grid;
}

void Scheme::check_scale(const torch::Tensor& scale, const Grid& grid) const {
  const bool is_one =
      strategy == "tensor" && scale.numel() == 1 && scale.dim() < 2;
  refuse_unless(
      is_one || scale.sizes() == torch::IntArrayRef(grid.shape()),
      "is quantized by \"compressed-tensors\" with a scale for each {}, but "
      "its \"weight_scale\" has the shape {}, expected {}",
      strategy,
      shape_text(scale.sizes()),
      shape_text(grid.shape()));
}

std::vector<Scheme> schemes_of(const Settings& settings) {
  check_only_quantized(settings);
  std::vector<Scheme> schemes;
  const auto format = settings.text({"format"}).value_or("");
  for (const auto& [name, group] : settings.get("config_groups").fields()) {
    const auto& weights = group.get("weights");
    if (!group.is_object()) {
      refuse_field("config_groups", group);
    }
    if (weights.fields().empty()) {
      continue;
    }
    auto scheme = scheme_of(weights);
    scheme.format = text_of(group, "format");
    if (scheme.format.empty() && format != "mixed-precision") {
      scheme.format = format;
    }
    if (std::find(schemes.begin(), schemes.end(), scheme) == schemes.end()) {
      schemes.push_back(std::move(scheme));
    }
  }
  refuse_unless(
      !schemes.empty(),
      "is quantized by \"compressed-tensors\", but the configuration has no "
      "\"config_groups\" with \"weights\"");
  return schemes;
}

} // namespace torch_attention::weights::quantized
