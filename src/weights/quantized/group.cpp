#include <weights/quantized/group.h>

#include <weights/text.h>

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

namespace torch_attention::weights::quantized {

namespace {

/// The last component of a name, if it makes the tensor one of a group.
const std::unordered_set<std::string>& field_names() {
  static const std::unordered_set<std::string> names = {
      "weight",
      // FP8
      "weight_scale_inv",
      "weight_scale",
      "weight_scale_2",
      "qscale_weight",
      // refused
      "scale_weight",
      "weight_scales",
      "scale",
      // GPTQ and AWQ
      "qweight",
      "qzeros",
      "scales",
      "g_idx",
      // compressed-tensors
      "weight_packed",
      "weight_zero_point",
      "weight_shape",
      "weight_g_idx",
      "weight_global_scale",
      "compressed",
      "bitmask",
      // bitsandbytes
      "SCB",
      "weight_format",
      // hqq, aqlm
      "W_q",
      "codes",
      "codebooks",
  };
  return names;
}

/// Returns whether it quantizes activations, or keys and values in a cache.
bool is_of_activations(std::string_view field) {
  static constexpr std::array<std::string_view, 9> kFields = {
      "input_scale",
      "input_scale_ub",
      "input_zero_point",
      "input_global_scale",
      "activation_scale",
      "output_scale",
      "output_zero_point",
      "k_scale",
      "v_scale"};
  return std::find(kFields.begin(), kFields.end(), field) != kFields.end();
}

/// Returns where the component before `end` begins.
size_t component_before(std::string_view key, size_t end) {
  const auto dot = end == 0 ? std::string_view::npos : key.rfind('.', end - 1);
  return dot == std::string_view::npos ? 0 : dot + 1;
}

/// Returns whether these are the last components of "weight.absmax",
/// "weight.quant_state.bitsandbytes__nf4" or "weight._data".
bool is_below_weight(std::string_view rest) {
  constexpr std::string_view kWeight = "weight.";
  if (!starts_with(rest, kWeight)) {
    return false;
  }
  rest.remove_prefix(kWeight.size());
  static constexpr std::array<std::string_view, 7> kFields = {
      "absmax",
      "quant_map",
      "nested_absmax",
      "nested_quant_map",
      "_data",
      "_scale",
      "_shift"};
  return std::find(kFields.begin(), kFields.end(), rest) != kFields.end() ||
      starts_with(rest, "quant_state.");
}

} // namespace

std::optional<FieldOfGroup> field_of(const std::string& key) {
  const auto last = component_before(key, key.size());
  auto name = key.substr(last);
  if (field_names().count(name) > 0 || is_of_activations(name) ||
      starts_with(name, kTorchaoStart)) {
    return FieldOfGroup{key.substr(0, last), std::move(name)};
  }
  auto begin = last;
  for (int above = 0; above < 2 && begin > 0; ++above) {
    begin = component_before(key, begin - 1);
    if (is_below_weight(std::string_view(key).substr(begin))) {
      return FieldOfGroup{key.substr(0, begin), key.substr(begin)};
    }
  }
  return std::nullopt;
}

bool Group::has_start(std::string_view start_of_field) const {
  return std::any_of(fields.begin(), fields.end(), [&](const auto& each) {
    return starts_with(each.first, start_of_field);
  });
}

const torch::Tensor* Group::find(const std::string& field) const {
  const auto found = fields.find(field);
  return found == fields.end() ? nullptr : &found->second;
}

const torch::Tensor& Group::get(
    const std::string& field,
    std::initializer_list<torch::ScalarType> dtypes) const {
  const auto* tensor = find(field);
  refuse_unless(tensor != nullptr, "is quantized, but has no \"{}\"", field);
  refuse_unless(
      std::find(dtypes.begin(), dtypes.end(), tensor->scalar_type()) !=
          dtypes.end(),
      "is quantized, but its \"{}\" is {}, which is not read",
      field,
      torch::toString(tensor->scalar_type()));
  // Strides of zero could make a small file a huge tensor.
  refuse_unless(
      tensor->is_contiguous() && !tensor->is_neg(),
      "is quantized, but its \"{}\" is not contiguous: save a contiguous one",
      field);
  refuse_unless(
      tensor->numel() > 0,
      "is quantized, but its \"{}\" has the shape {}",
      field,
      shape_text(tensor->sizes()));
  return *tensor;
}

void Group::check_fields(std::initializer_list<std::string_view> known) const {
  for (const auto& [field, tensor] : fields) {
    refuse_unless(
        is_of_activations(field) ||
            std::find(known.begin(), known.end(), field) != known.end(),
        "is quantized, but has a \"{}\", which is not expected",
        field);
  }
}

void Group::check_shape(const std::string& field, torch::IntArrayRef expected)
    const {
  const auto& tensor = fields.at(field);
  refuse_unless(
      tensor.sizes() == expected,
      "is quantized, but its \"{}\" has the shape {}, expected {}",
      field,
      shape_text(tensor.sizes()),
      shape_text(expected));
}

uint64_t Group::bytes() const {
  uint64_t sum = 0;
  for (const auto& [field, tensor] : fields) {
    sum += tensor.nbytes();
  }
  return sum;
}

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  refuse_unless(
      !__builtin_mul_overflow(a, b, &result),
      "is quantized, but has too many elements: {} times {}",
      a,
      b);
  return result;
}

} // namespace torch_attention::weights::quantized
