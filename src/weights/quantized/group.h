#pragma once

#include <weights/quantized/refused.h>

#include <torch/types.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace torch_attention::weights::quantized {

/// How the names of the parts of a weight of torchao begin.
inline constexpr std::string_view kTorchaoStart = "_weight_";

/// A tensor's name, taken apart.
struct FieldOfGroup {
  /// The path of the module, with a dot at its end; "" for the root.
  std::string start;
  /// "weight", "qweight", "weight.absmax".
  std::string field;
  /// The parameter of the module that it is a part of.
  std::string parameter = "weight";

  std::string name() const {
    return start + parameter;
  }
};

/// Returns the module and the field of a tensor that a quantized module may
/// have; none for other names.
std::optional<FieldOfGroup> field_of(const std::string& key);

/// The tensors of one module that may hold its quantized weight, or another
/// parameter that torchao has quantized. Those that only quantize activations
/// are among them, because nothing else needs them.
struct Group {
  /// The path of the module, with a dot at its end; "" for the root.
  std::string start;
  std::string parameter = "weight";
  /// By the names of the fields.
  std::map<std::string, torch::Tensor> fields;
  /// The names in the file, in its order.
  std::vector<std::string> keys;
  /// The form of the first of them whose values the file has in another form;
  /// "" if all are tensors.
  std::string stored_as;

  std::string name() const {
    return start + parameter;
  }

  bool has(const std::string& field) const {
    return fields.count(field) > 0;
  }

  /// Returns whether any field begins with this text.
  bool has_start(std::string_view start_of_field) const;

  /// Returns a tensor, or null if there is none.
  const torch::Tensor* find(const std::string& field) const;

  /// Returns a contiguous tensor with one of these dtypes and no dimension of
  /// zero. Throws `Refused` for any other, and if there is none.
  const torch::Tensor& get(
      const std::string& field,
      std::initializer_list<torch::ScalarType> dtypes) const;

  /// Throws `Refused` if there are others than these and those that only
  /// quantize activations.
  void check_fields(std::initializer_list<std::string_view> known) const;

  /// Throws `Refused` unless the tensor of a field has this shape.
  void check_shape(const std::string& field, torch::IntArrayRef expected) const;

  /// Returns the number of bytes of all tensors.
  uint64_t bytes() const;
};

/// Returns the product of two sizes. Throws `Refused` if it overflows.
int64_t product(int64_t a, int64_t b);

/// Returns a / b, rounded up, for b > 0 and a >= 0.
inline int64_t divided_up(int64_t a, int64_t b) {
  return a / b + (a % b == 0 ? 0 : 1);
}

} // namespace torch_attention::weights::quantized
