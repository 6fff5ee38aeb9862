#include <weights/files/json.h>

#include <c10/util/Exception.h>

#include <set>
#include <string>
#include <vector>

namespace torch_attention {

namespace {

// Real ones have some hundred kilobytes; a tree takes many times its text.
constexpr size_t kMaxBytes = 100'000'000;
constexpr int kMaxDepth = 8;

} // namespace

nlohmann::json parse_json(const Bytes& bytes) {
  TORCH_CHECK(bytes.size <= kMaxBytes, "the file has JSON of more than 100 MB");
  const auto text = bytes.text();
  std::vector<std::set<std::string>> seen;
  const auto check = [&](int depth,
                         nlohmann::json::parse_event_t event,
                         nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    TORCH_CHECK(depth < kMaxDepth, "the file has JSON that is nested too deep");
    if (event == Event::object_start) {
      seen.emplace_back();
    } else if (event == Event::object_end) {
      seen.pop_back();
    } else if (event == Event::key) {
      TORCH_CHECK(
          seen.back().insert(value.get<std::string>()).second,
          "the file's JSON has the key ",
          value.dump(),
          " twice");
    }
    return true;
  };
  nlohmann::json result;
  try {
    result = nlohmann::json::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::json::exception&) {
    TORCH_CHECK(false, "the file begins as JSON, but is none, or is cut short");
  }
  return result;
}

} // namespace torch_attention
