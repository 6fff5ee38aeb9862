#include <json.h>

#include <check.h>
#include <format_text.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <unordered_set>

namespace torch_attention {

namespace {

// Real files have some hundred kilobytes.
constexpr size_t kMaxJson = 100'000'000;
// As deep as the JSON reader of the safetensors package goes.
constexpr size_t kMaxJsonDepth = 128;

using Kind = JsonValue::Kind;

/// Python's names of numbers that are not finite; JSON has none.
constexpr std::array<std::string_view, 3> kNotFinite{
    "NaN",
    "Infinity",
    "-Infinity"};
constexpr std::string_view kBeforeName = "{\"__float__\":\"";
constexpr std::string_view kAfterName = "\"}";

/// Returns the name that `text` starts with, or nothing.
std::string_view not_finite_at_start(std::string_view text) {
  const auto* found = std::find_if(
      kNotFinite.begin(), kNotFinite.end(), [&](std::string_view name) {
        return text.substr(0, name.size()) == name;
      });
  return found == kNotFinite.end() ? std::string_view() : *found;
}

/// A JSON text in which {"__float__":"NaN"} stands for Python's NaN.
struct FiniteText {
  std::string text;
  /// where in `text` that which stands for a number ends
  std::vector<size_t> ends;

  explicit FiniteText(std::string_view python) {
    text.reserve(python.size());
    bool quoted = false;
    for (size_t i = 0; i < python.size(); ++i) {
      const auto name = quoted ? "" : not_finite_at_start(python.substr(i));
      if (!name.empty()) {
        text.append(kBeforeName).append(name).append(kAfterName);
        ends.push_back(text.size());
        i += name.size() - 1;
        continue;
      }
      text += python[i];
      if (python[i] == '"') {
        quoted = !quoted;
      } else if (quoted && python[i] == '\\' && i + 1 < python.size()) {
        text += python[++i];
      }
    }
  }

  /// Returns where Python's text has what `text` has at `position`.
  size_t place_in_python(size_t position) const {
    const auto before = std::upper_bound(ends.begin(), ends.end(), position);
    return position -
        static_cast<size_t>(before - ends.begin()) *
        (kBeforeName.size() + kAfterName.size());
  }
};

/// The keys of an object. A few keys, as in most objects, need no allocation.
class Keys {
 public:
  /// Returns false if the key was there.
  bool insert(const std::string& key) {
    const auto end = few_.begin() + size_;
    if (std::find(few_.begin(), end, key) != end) {
      return false;
    }
    if (size_ == few_.size()) {
      return more_.insert(key).second;
    }
    few_[size_++] = key;
    return true;
  }

  void clear() {
    size_ = 0;
    if (!more_.empty()) {
      more_ = {};
    }
  }

 private:
  std::array<std::string, 8> few_;
  size_t size_ = 0;
  std::unordered_set<std::string> more_;
};

/// Reads the text without making a tree of it, which would take many times the
/// text's memory. nlohmann's parser with a callback makes one as well, and
/// notices too late that a key comes twice.
class JsonReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonReader(const JsonVisitor& visit, const JsonRules& rules)
      : visit_(visit), rules_(rules) {}

  /// Returns where the text is not JSON, in bytes from 1; 0 if all of it is.
  size_t read(std::string_view text) {
    if (!nlohmann::json::sax_parse(text.begin(), text.end(), this)) {
      return error_;
    }
    // nlohmann's parser ends at a null byte, whatever follows it.
    return text.find('\0') + 1;
  }

  bool start_object(std::size_t /*elements*/) override {
    return open(Kind::kObject);
  }
  bool end_object() override {
    return close();
  }
  bool start_array(std::size_t /*elements*/) override {
    return open(Kind::kList);
  }
  bool end_array() override {
    return close();
  }
  bool key(string_t& name) override {
    TORCH_ATTENTION_CHECK(
        rules_.is_python || keys_[path_.size() - 1].insert(name),
        "{}the file's JSON has the key \"{}\" twice",
        rules_.problem,
        shortened(name, 200));
    path_.back() = name;
    return true;
  }
  bool null() override {
    return give({Kind::kNull, {}, 0, 0});
  }
  bool boolean(bool value) override {
    return give({Kind::kBool, {}, value ? 1 : 0, 0});
  }
  bool string(string_t& text) override {
    return give({Kind::kText, text, 0, 0});
  }
  bool number_integer(number_integer_t number) override {
    return give({Kind::kInteger, {}, number, 0});
  }
  bool number_unsigned(number_unsigned_t number) override {
    return number <= static_cast<uint64_t>(INT64_MAX)
        ? number_integer(static_cast<int64_t>(number))
        : number_float(static_cast<double>(number), std::to_string(number));
  }
  bool number_float(number_float_t number, const string_t& text) override {
    return give({Kind::kReal, text, 0, number});
  }
  bool binary(binary_t& /*value*/) override {
    return false;
  }
  bool parse_error(
      std::size_t position,
      const std::string& /*token*/,
      const nlohmann::detail::exception& /*error*/) override {
    error_ = position;
    return false;
  }

 private:
  bool give(const JsonValue& value) {
    visit_(path_, value);
    return true;
  }

  bool open(Kind kind) {
    give({kind, {}, 0, 0});
    TORCH_ATTENTION_CHECK(
        path_.size() < kMaxJsonDepth,
        "{}the file has JSON that is nested too deep",
        rules_.problem);
    keys_[path_.size()].clear();
    path_.emplace_back();
    return true;
  }

  bool close() {
    path_.pop_back();
    return true;
  }

  const JsonVisitor& visit_;
  const JsonRules& rules_;
  size_t error_ = 0;
  JsonPath path_;
  /// The keys of each object that is open.
  std::array<Keys, kMaxJsonDepth> keys_;
};

std::string_view kind_text(Kind kind) {
  switch (kind) {
    case Kind::kObject:
      return "an object";
    case Kind::kList:
      return "a list";
    case Kind::kText:
      return "a text";
    case Kind::kInteger:
    case Kind::kReal:
      return "a number";
    case Kind::kBool:
      return "true or false";
    case Kind::kNull:
      break;
  }
  return "null";
}

} // namespace

void check_kind(
    const JsonValue& value,
    JsonValue::Kind kind,
    std::string_view expected) {
  if (value.kind == kind) {
    return;
  }
  const bool is_number = value.kind == Kind::kReal;
  C10_THROW_ERROR(
      Error,
      format_text(
          "the file is damaged: expected {}, but it has {}",
          expected,
          is_number ? shortened(value.text, 100) : kind_text(value.kind)));
}

void read_json(
    std::string_view text,
    const JsonVisitor& visit,
    const JsonRules& rules) {
  TORCH_ATTENTION_CHECK(
      text.size() <= kMaxJson,
      "{}the file has JSON of more than 100 MB",
      rules.problem);
  JsonReader reader(visit, rules);
  size_t error = 0;
  if (rules.is_python) {
    const FiniteText finite(text);
    error = finite.place_in_python(reader.read(finite.text));
  } else {
    error = reader.read(text);
  }
  TORCH_ATTENTION_CHECK(
      error == 0,
      "{}the file's JSON is none, or is cut short (at byte {})",
      rules.problem,
      error);
}

} // namespace torch_attention
