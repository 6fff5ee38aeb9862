#include <weights/files/json.h>

#include <format_text.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <unordered_set>

namespace torch_attention::weights::files {

namespace {

// Real files have some hundred kilobytes.
constexpr size_t kMaxJson = 100'000'000;
// As deep as the JSON reader of the safetensors package goes.
constexpr size_t kMaxJsonDepth = 128;

/// The keys of an object. The few of most objects cost no memory of their own.
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

/// Reads the text without making a tree of it. A tree would take many times the
/// text's memory, and its destructor allocates, which ends the program where no
/// memory is left. The library's parser with a callback makes one as well: it
/// calls back only for values in objects that are kept, and in these it keeps a
/// place for every key, whatever the callback returns for the value. With
/// it a key that comes twice would also be noticed too late.
class JsonReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonReader(
      const std::function<void(const JsonPath&, const JsonValue&)>& visit)
      : visit_(visit) {}

  bool start_object(std::size_t /*elements*/) override {
    give({JsonValue::Kind::kObject, {}, 0});
    open();
    return true;
  }
  bool end_object() override {
    return close();
  }
  bool start_array(std::size_t /*elements*/) override {
    give({JsonValue::Kind::kList, {}, 0});
    open();
    return true;
  }
  bool end_array() override {
    return close();
  }
  bool key(string_t& name) override {
    TORCH_CHECK(
        keys_[path_.size() - 1].insert(name),
        format_text(
            "the file's JSON has the key \"{}\" twice", shortened(name, 200)));
    path_.back() = name;
    return true;
  }
  bool null() override {
    return give({JsonValue::Kind::kNull, {}, 0});
  }
  bool boolean(bool value) override {
    return give({JsonValue::Kind::kBool, {}, value ? 1 : 0});
  }
  bool string(string_t& text) override {
    return give({JsonValue::Kind::kText, text, 0});
  }
  bool number_integer(number_integer_t number) override {
    return give({JsonValue::Kind::kInteger, {}, number});
  }
  bool number_unsigned(number_unsigned_t number) override {
    if (number <= static_cast<uint64_t>(INT64_MAX)) {
      return number_integer(static_cast<int64_t>(number));
    }
    return give({JsonValue::Kind::kReal, std::to_string(number), 0});
  }
  bool number_float(number_float_t /*number*/, const string_t& text) override {
    return give({JsonValue::Kind::kReal, text, 0});
  }
  bool binary(binary_t& /*value*/) override {
    return false;
  }
  bool parse_error(
      std::size_t position,
      const std::string& /*token*/,
      const nlohmann::detail::exception& /*error*/) override {
    C10_THROW_ERROR(
        Error,
        format_text(
            "the file's JSON is none, or is cut short (at byte {})", position));
  }

 private:
  bool give(const JsonValue& value) {
    visit_(path_, value);
    return true;
  }

  void open() {
    TORCH_CHECK(
        path_.size() < kMaxJsonDepth,
        "the file has JSON that is nested too deep");
    keys_[path_.size()].clear();
    path_.emplace_back();
  }

  bool close() {
    path_.pop_back();
    return true;
  }

  const std::function<void(const JsonPath&, const JsonValue&)>& visit_;
  JsonPath path_;
  /// The keys of each object that is open.
  std::array<Keys, kMaxJsonDepth> keys_;
};

} // namespace

std::string_view kind_text(JsonValue::Kind kind) {
  switch (kind) {
    case JsonValue::Kind::kObject:
      return "an object";
    case JsonValue::Kind::kList:
      return "a list";
    case JsonValue::Kind::kText:
      return "a text";
    case JsonValue::Kind::kInteger:
    case JsonValue::Kind::kReal:
      return "a number";
    case JsonValue::Kind::kBool:
      return "true or false";
    case JsonValue::Kind::kNull:
      break;
  }
  return "null";
}

void check_kind(
    const JsonValue& value,
    JsonValue::Kind kind,
    std::string_view expected) {
  if (value.kind == kind) {
    return;
  }
  const bool is_number = value.kind == JsonValue::Kind::kReal;
  C10_THROW_ERROR(
      Error,
      format_text(
          "the file is damaged: expected {}, but it has {}",
          expected,
          is_number ? shortened(value.text, 100) : kind_text(value.kind)));
}

void read_json(
    const Bytes& bytes,
    const std::function<void(const JsonPath&, const JsonValue&)>& visit) {
  TORCH_CHECK(bytes.size <= kMaxJson, "the file has JSON of more than 100 MB");
  const auto text = bytes.text();
  JsonReader reader(visit);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
}

} // namespace torch_attention::weights::files
