#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace torch_attention {

/// A value of a JSON text, with all values in it.
class Json {
 public:
  using List = std::vector<Json>;
  using Fields = std::map<std::string, Json>;

  Json() = default;
  explicit Json(bool value) : value_(value) {}
  explicit Json(int64_t value) : value_(value) {}
  explicit Json(double value) : value_(value) {}
  /// A string literal would convert to bool.
  explicit Json(const char* value) = delete;
  explicit Json(std::string value) : value_(std::move(value)) {}
  explicit Json(List value) : value_(std::move(value)) {}
  explicit Json(Fields value) : value_(std::move(value)) {}

  static Json object() {
    return Json(Fields());
  }

  /// No configuration has more values: one with the names of 20,000 classes has
  /// 40,000. Limits memory, since two bytes of a file can make a value of more
  /// than a hundred bytes.
  static constexpr size_t kMostValues = 250'000;

  /// Parses JSON like Python's json, with NaN, Infinity and -Infinity (see
  /// `JsonRules`); of equal names the last one counts.
  /// Throws c10::Error, which names `path`, if it is no JSON, is nested deeper
  /// than `deepest`, or has more than `most_values` values.
  static Json parse(
      std::istream& text,
      const std::string& path,
      size_t deepest,
      size_t most_values = kMostValues);
  /// Parses JSON of the library, which has to be an object.
  static Json parse(const char* text);

  bool is_null() const {
    return as<std::nullptr_t>() != nullptr;
  }
  bool is_number() const {
    return as_number().has_value();
  }
  bool is_text() const {
    return as<std::string>() != nullptr;
  }
  bool is_object() const {
    return as<Fields>() != nullptr;
  }
  bool is_list() const {
    return as<List>() != nullptr;
  }

  /// Return the value, or none if it is of another kind.
  std::optional<bool> as_flag() const {
    return copy_of<bool>();
  }
  /// Only of a number that is written as an integer of 64 bits.
  std::optional<int64_t> as_integer() const {
    return copy_of<int64_t>();
  }
  std::optional<double> as_number() const;
  std::optional<std::string> as_text() const {
    return copy_of<std::string>();
  }
  std::optional<Json> as_object() const {
    return is_object() ? std::optional(*this) : std::nullopt;
  }

  /// Return the contents of a list or object; nothing of any other value.
  const List& elements() const;
  const Fields& fields() const;

  /// Returns the field of an object, or null if there is none.
  const Json* find(const std::string& name) const&;
  /// It would be gone with the object.
  const Json* find(const std::string& name) const&& = delete;

  /// Returns the field of an object, or a null value if there is none.
  const Json& get(const std::string& name) const;

  bool contains(const std::string& name) const {
    return fields().count(name) > 0;
  }

  /// Change an object: throw c10::Error for any other value.
  void set(const std::string& name, Json value);
  void erase(const std::string& name);
  /// Sets all fields that another object has.
  void update(const Json& other);
  /// Returns the field to be changed, or null if there is none.
  Json* find_to_change(const std::string& name);

  /// Returns the number of values in it, with itself.
  size_t num_values() const;

  /// Returns the text of the value, no more than `most` bytes of it.
  std::string shown(size_t most) const;

  /// Numbers are equal if their values are, however they are written: to the
  /// precision of a double where only one is an integer.
  bool operator==(const Json& other) const;
  bool operator!=(const Json& other) const {
    return !(*this == other);
  }

  /// Makes the value one of nlohmann's library, which writes it.
  template <typename Library>
  friend void to_json(Library& to, const Json& from) {
    std::visit([&to](const auto& value) { to = value; }, from.value_);
  }

 private:
  template <typename T>
  const T* as() const {
    return std::get_if<T>(&value_);
  }

  template <typename T>
  std::optional<T> copy_of() const {
    const auto* value = as<T>();
    return value == nullptr ? std::nullopt : std::optional(*value);
  }

  Fields& fields_to_change();
  /// Adds the value to a list, or as this field to an object.
  Json* add(const std::string& name, Json value);

  std::variant<std::nullptr_t, bool, int64_t, double, std::string, List, Fields>
      value_;
};

// Lists that grow move what they hold.
static_assert(std::is_nothrow_move_constructible_v<Json>);

} // namespace torch_attention
