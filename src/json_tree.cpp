#include <json_tree.h>

#include <check.h>
#include <format_text.h>
#include <json.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <iterator>
#include <limits>
#include <sstream>

namespace torch_attention {

namespace {

/// Returns a value that was read, still without contents.
Json tree_of(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kObject:
      return Json::object();
    case JsonValue::Kind::kList:
      return Json(Json::List());
    case JsonValue::Kind::kText:
      return Json(std::string(value.text));
    case JsonValue::Kind::kInteger:
      return Json(value.integer);
    case JsonValue::Kind::kReal:
      return Json(value.real);
    case JsonValue::Kind::kBool:
      return Json(value.integer != 0);
    case JsonValue::Kind::kNull:
      break;
  }
  return {};
}

} // namespace

Json Json::parse(
    std::istream& text,
    const std::string& path,
    size_t deepest,
    size_t most_values) {
  const std::string all(std::istreambuf_iterator<char>(text), {});
  Json root;
  // The lists and objects around the next value, and the last one.
  std::vector<Json*> open;
  size_t num_values = 0;
  const auto add_value = [&](const JsonPath& names, const JsonValue& value) {
    auto tree = tree_of(value);
    TORCH_ATTENTION_CHECK(
        names.size() < deepest || !(tree.is_object() || tree.is_list()),
        "\"{}\" is nested deeper than {}",
        path,
        deepest);
    TORCH_ATTENTION_CHECK(
        ++num_values <= most_values,
        "\"{}\" has more than {} values",
        path,
        most_values);
    if (names.empty()) {
      root = std::move(tree);
      open = {&root};
      return;
    }
    // Only the innermost list grows, so that the others stay where they are.
    open.resize(names.size());
    open.push_back(open.back()->add(names.back(), std::move(tree)));
  };
  read_json(
      all,
      add_value,
      {format_text("expected a JSON object in \"{}\": ", path),
       /*is_python=*/true});
  return root;
}

Json Json::parse(const char* text) {
  std::istringstream stream(text);
  auto result =
      parse(stream, "a text of ours", std::numeric_limits<size_t>::max());
  TORCH_INTERNAL_ASSERT(result.is_object(), text);
  return result;
}

std::optional<double> Json::as_number() const {
  const auto integer = as_integer();
  return integer ? std::optional(static_cast<double>(*integer))
                 : copy_of<double>();
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
  const auto found = fields().find(name);
  return found == fields().end() ? nullptr : &found->second;
}

const Json& Json::get(const std::string& name) const {
  static const Json none;
  const auto* found = find(name);
  return found == nullptr ? none : *found;
}

Json::Fields& Json::fields_to_change() {
  auto* fields = std::get_if<Fields>(&value_);
  TORCH_ATTENTION_CHECK(
      fields != nullptr, "expected a JSON object, but got {}", shown(60));
  return *fields;
}

Json* Json::add(const std::string& name, Json value) {
  if (auto* list = std::get_if<List>(&value_)) {
    list->push_back(std::move(value));
    return &list->back();
  }
  return &(fields_to_change()[name] = std::move(value));
}

Json* Json::find_to_change(const std::string& name) {
  auto& fields = fields_to_change();
  const auto found = fields.find(name);
  return found == fields.end() ? nullptr : &found->second;
}

void Json::set(const std::string& name, Json value) {
  fields_to_change().insert_or_assign(name, std::move(value));
}

void Json::erase(const std::string& name) {
  fields_to_change().erase(name);
}

void Json::update(const Json& other) {
  auto& fields = fields_to_change();
  for (const auto& [name, value] : other.fields()) {
    fields.insert_or_assign(name, value);
  }
}

size_t Json::num_values() const {
  size_t count = 1;
  for (const auto& element : elements()) {
    count += element.num_values();
  }
  for (const auto& [name, value] : fields()) {
    count += value.num_values();
  }
  return count;
}

std::string Json::shown(size_t most) const {
  using nlohmann::json;
  const auto text =
      json(*this).dump(-1, ' ', false, json::error_handler_t::replace);
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
