#include <json_tree.h>

#include <format_text.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <limits>
#include <string_view>

namespace torch_attention {

namespace {

/// Returns the place of `name`, or the one where it would be inserted.
template <typename Fields>
auto place_of(Fields& fields, const std::string& name) {
  return std::lower_bound(
      fields.begin(),
      fields.end(),
      name,
      [](const Json::Field& field, const std::string& wanted) {
        return field.first < wanted;
      });
}

template <typename Fields>
auto* found_in(Fields& fields, const std::string& name) {
  const auto place = place_of(fields, name);
  return place != fields.end() && place->first == name ? &place->second
                                                       : nullptr;
}

/// Sorts fields by name; of those of one name the last one stays.
void sort(Json::Fields& fields) {
  const auto by_name = [](const Json::Field& x, const Json::Field& y) {
    return x.first < y.first;
  };
  const auto same_name = [](const Json::Field& x, const Json::Field& y) {
    return x.first == y.first;
  };
  // The last of a name comes first, as std::unique keeps that.
  std::reverse(fields.begin(), fields.end());
  std::stable_sort(fields.begin(), fields.end(), by_name);
  fields.erase(
      std::unique(fields.begin(), fields.end(), same_name), fields.end());
}

/// Python's names of numbers that are not finite; JSON has none.
constexpr std::array<std::string_view, 3> kNotFinite{
    "NaN",
    "Infinity",
    "-Infinity"};

/// Returns the name that `text` starts with, or nothing.
std::string_view not_finite_at_start(std::string_view text) {
  const auto* found = std::find_if(
      kNotFinite.begin(), kNotFinite.end(), [&](std::string_view name) {
        return text.substr(0, name.size()) == name;
      });
  return found == kNotFinite.end() ? std::string_view() : *found;
}

/// Returns a JSON text in which {"__float__":"NaN"} stands for NaN.
std::string with_finite_numbers(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto name = quoted ? "" : not_finite_at_start(text.substr(i));
    if (!name.empty()) {
      result.append("{\"__float__\":\"").append(name).append("\"}");
      i += name.size() - 1;
      continue;
    }
    result += text[i];
    if (text[i] == '"') {
      quoted = !quoted;
    } else if (quoted && text[i] == '\\' && i + 1 < text.size()) {
      result += text[++i];
    }
  }
  return result;
}

/// No configuration has more: one with the names of 20,000 classes has 40,000.
/// A value takes a hundred bytes, which two bytes of text may ask for.
constexpr size_t kMostValues = 250'000;

/// Returns a text, bool or number as it is written.
template <typename T>
std::string written(const T& value) {
  using nlohmann::json;
  return json(value).dump(-1, ' ', false, json::error_handler_t::replace);
}

} // namespace

/// Puts the values that are read into the innermost open list or object.
class JsonTreeReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonTreeReader(std::string path, size_t deepest)
      : path_(std::move(path)), deepest_(deepest) {}

  Json take() {
    return std::move(root_);
  }

  bool start_object(std::size_t /*elements*/) override {
    return open(Json::object());
  }
  bool end_object() override {
    sort(open_.back()->fields_to_change());
    return close();
  }
  bool start_array(std::size_t /*elements*/) override {
    Json list;
    list.value_ = Json::List();
    return open(std::move(list));
  }
  bool end_array() override {
    return close();
  }
  bool key(string_t& name) override {
    name_ = std::move(name);
    return true;
  }
  bool null() override {
    return add(Json());
  }
  bool boolean(bool value) override {
    return add(Json(value));
  }
  bool string(string_t& text) override {
    return add(Json(std::move(text)));
  }
  bool number_integer(number_integer_t number) override {
    return add(Json(static_cast<int64_t>(number)));
  }
  bool number_unsigned(number_unsigned_t number) override {
    return number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
        ? add(Json(static_cast<int64_t>(number)))
        : add(Json(static_cast<double>(number)));
  }
  bool number_float(number_float_t number, const string_t& /*text*/) override {
    return add(Json(static_cast<double>(number)));
  }
  bool binary(binary_t& /*value*/) override {
    return false;
  }
  bool parse_error(
      std::size_t /*position*/,
      const std::string& /*token*/,
      const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  Json& place(Json value) {
    TORCH_CHECK(
        ++num_values_ <= kMostValues,
        format_text("\"{}\" has more than {} values", path_, kMostValues));
    if (open_.empty()) {
      root_ = std::move(value);
      return root_;
    }
    auto& parent = open_.back()->value_;
    if (auto* list = std::get_if<Json::List>(&parent)) {
      list->push_back(std::move(value));
      return list->back();
    }
    auto& fields = std::get<Json::Fields>(parent);
    fields.emplace_back(std::move(name_), std::move(value));
    return fields.back().second;
  }

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json value) {
    TORCH_CHECK(
        open_.size() < deepest_,
        format_text("\"{}\" is nested deeper than {}", path_, deepest_));
    // It stays where it is until it is closed: only the innermost one grows.
    open_.push_back(&place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string path_;
  size_t deepest_;
  size_t num_values_ = 0;
  Json root_;
  std::vector<Json*> open_;
  std::string name_;
};

Json::Json(const Json& other) {
  std::visit(
      [this](const auto& value) {
        auto copy = value;
        value_ = std::move(copy);
      },
      other.value_);
}

Json& Json::operator=(const Json& other) {
  return *this = Json(other);
}

Json Json::parse(std::istream& text, const std::string& path, size_t deepest) {
  const std::string python(std::istreambuf_iterator<char>(text), {});
  JsonTreeReader reader(path, deepest);
  return nlohmann::json::sax_parse(with_finite_numbers(python), &reader)
      ? reader.take()
      : Json();
}

Json Json::parse(const char* text) {
  JsonTreeReader reader("", std::numeric_limits<size_t>::max());
  const bool read =
      nlohmann::json::sax_parse(text, text + std::strlen(text), &reader);
  auto result = read ? reader.take() : Json();
  TORCH_INTERNAL_ASSERT(result.is_object(), text);
  return result;
}

size_t Json::num_values() const {
  size_t count = 1;
  for (const auto& element : elements()) {
    count += element.num_values();
  }
  for (const auto& field : fields()) {
    count += field.second.num_values();
  }
  return count;
}

std::optional<bool> Json::as_flag() const {
  const auto* value = as<bool>();
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<int64_t> Json::as_integer() const {
  const auto* value = as<int64_t>();
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<double> Json::as_number() const {
  if (const auto integer = as_integer()) {
    return static_cast<double>(*integer);
  }
  const auto* value = as<double>();
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::string> Json::as_text() const {
  const auto* value = as<std::string>();
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<Json> Json::as_object() const {
  return is_object() ? std::optional(*this) : std::nullopt;
}

const Json::List& Json::elements() const {
  static const List none;
  const auto* list = as<List>();
  return list == nullptr ? none : *list;
}

const Json::Fields& Json::fields() const {
  static const Fields none;
  const auto* fields = as<Fields>();
  return fields == nullptr ? none : *fields;
}

const Json* Json::find(const std::string& name) const& {
  return found_in(fields(), name);
}

const Json& Json::get(const std::string& name) const {
  static const Json none;
  const auto* found = find(name);
  return found == nullptr ? none : *found;
}

Json::Fields& Json::fields_to_change() {
  auto* fields = std::get_if<Fields>(&value_);
  TORCH_CHECK(fields != nullptr, "expected a JSON object, but got ", shown(60));
  return *fields;
}

Json* Json::find_to_change(const std::string& name) {
  return found_in(fields_to_change(), name);
}

void Json::update(const Json& other) {
  // Not one by one: each may move all that come after it.
  auto fields = fields_to_change();
  fields.insert(fields.end(), other.fields().begin(), other.fields().end());
  sort(fields);
  value_ = std::move(fields);
}

void Json::set(const std::string& name, Json value) {
  auto& fields = fields_to_change();
  if (auto* found = found_in(fields, name)) {
    *found = std::move(value);
    return;
  }
  fields.emplace(place_of(fields, name), name, std::move(value));
}

void Json::erase(const std::string& name) {
  auto& fields = fields_to_change();
  const auto place = place_of(fields, name);
  if (place != fields.end() && place->first == name) {
    fields.erase(place);
  }
}

void Json::show(std::string& text, size_t most) const {
  if (const auto* list = as<List>()) {
    text += '[';
    for (size_t i = 0; i < list->size() && text.size() <= most; ++i) {
      text += i == 0 ? "" : ",";
      (*list)[i].show(text, most);
    }
    text += ']';
  } else if (const auto* fields = as<Fields>()) {
    text += '{';
    for (size_t i = 0; i < fields->size() && text.size() <= most; ++i) {
      text += (i == 0 ? "" : ",") + written((*fields)[i].first) + ":";
      (*fields)[i].second.show(text, most);
    }
    text += '}';
  } else if (const auto* string = as<std::string>()) {
    text += written(*string);
  } else if (const auto* flag = as<bool>()) {
    text += written(*flag);
  } else if (const auto* integer = as<int64_t>()) {
    text += written(*integer);
  } else if (const auto* number = as<double>()) {
    text += written(*number);
  } else {
    text += "null";
  }
}

std::string Json::shown(size_t most) const {
  std::string text;
  show(text, most);
  return text.size() <= most ? text : text.substr(0, most) + "...";
}

bool Json::operator==(const Json& other) const {
  const auto number = as_number();
  const auto other_number = other.as_number();
  return number && other_number && value_.index() != other.value_.index()
      ? *number == *other_number
      : value_ == other.value_;
}

} // namespace torch_attention
