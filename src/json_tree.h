#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace torch_attention {

/// A value of a JSON text, with all values in it. nlohmann's parser fills it,
/// without nlohmann's tree: the destructor of that asks for memory, and ends
/// the process where none is left.
class Json {
 public:
  using List = std::vector<Json>;
  using Field = std::pair<std::string, Json>;
  /// sorted by name
  using Fields = std::vector<Field>;

  Json() = default;
  /// std::variant's own copies crash in libstdc++ where memory runs out: its
  /// destructor then visits a value that was not made.
  Json(const Json& other);
  Json& operator=(const Json& other);
  Json(Json&&) = default;
  Json& operator=(Json&&) = default;
  ~Json() = default;

  explicit Json(bool value) : value_(value) {}
  explicit Json(int64_t value) : value_(value) {}
  explicit Json(double value) : value_(value) {}
  /// A text would become a bool.
  explicit Json(const char* value) = delete;
  explicit Json(std::string value) : value_(std::move(value)) {}

  static Json object() {
    Json result;
    result.value_ = Fields();
    return result;
  }

  /// Reads a text; null if it is no JSON. If a name comes twice, the last one
  /// counts, as in Python, whose NaN, Infinity and -Infinity become
  /// {"__float__":"NaN"} and so on, as `transformers` 5 writes them. Throws
  /// c10::Error, which names `path`, if it is nested deeper than `deepest`, or
  /// has too many values.
  static Json parse(
      std::istream& text,
      const std::string& path,
      size_t deepest);
  /// Reads a text of our own, which has to be an object.
  static Json parse(const char* text);

  bool is_null() const {
    return std::holds_alternative<std::monostate>(value_);
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
  std::optional<bool> as_flag() const;
  /// Only of a number that is written as an integer of 64 bits.
  std::optional<int64_t> as_integer() const;
  std::optional<double> as_number() const;
  std::optional<std::string> as_text() const;
  std::optional<Json> as_object() const;

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
    return find(name) != nullptr;
  }

  /// Change an object: throw c10::Error for any other value.
  void set(const std::string& name, Json value);
  void erase(const std::string& name);
  /// Sets all fields that another object has, or none where memory runs out.
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

 private:
  friend class JsonTreeReader;

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&value_);
  }

  Fields& fields_to_change();
  void show(std::string& text, size_t most) const;

  std::variant<std::monostate, bool, int64_t, double, std::string, List, Fields>
      value_;
};

// Lists that grow move what they hold: a copy could fail.
static_assert(std::is_nothrow_move_constructible_v<Json::Field>);
static_assert(std::is_nothrow_move_assignable_v<Json::Field>);

} // namespace torch_attention
