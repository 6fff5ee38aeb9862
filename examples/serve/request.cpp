#include "request.h"

#include <algorithm>
#include <array>

namespace serve {

namespace {

using nlohmann::json;

constexpr std::array<const char*, 9> kFields = {
    "id",
    "prompt",
    "tokens",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "stop"};

void expect(bool holds, const std::string& message) {
  if (!holds) {
    throw RequestError(message);
  }
}

void check_fields(const json& line) {
  for (const auto& item : line.items()) {
    expect(
        std::find(kFields.begin(), kFields.end(), item.key()) != kFields.end(),
        "unknown field \"" + item.key() + "\"");
  }
}

int64_t integer_of(const json& value, const char* name) {
  expect(
      value.is_number_integer(),
      std::string("expected an integer as \"") + name + "\"");
  // Larger ones become negative, and are refused for that.
  return value.get<int64_t>();
}

double number_of(const json& value, const char* name) {
  expect(
      value.is_number(), std::string("expected a number as \"") + name + "\"");
  return value.get<double>();
}

std::vector<int64_t> prompt_of(const json& line, bool has_bytes_as_tokens) {
  expect(
      line.contains("prompt") != line.contains("tokens"),
      R"(expected either "prompt", a text, or "tokens", a list)");
  if (line.contains("prompt")) {
    const auto& prompt = line["prompt"];
    expect(prompt.is_string(), R"(expected a text as "prompt")");
    expect(
        has_bytes_as_tokens,
        R"(expected "tokens": only models whose tokens are bytes take texts)");
    return bytes_of(prompt.get_ref<const std::string&>());
  }
  const auto& tokens = line["tokens"];
  expect(tokens.is_array(), R"(expected a list of integers as "tokens")");
  std::vector<int64_t> prompt;
  for (const auto& token : tokens) {
    prompt.push_back(integer_of(token, "tokens"));
  }
  return prompt;
}

void read_stops(const json& stops, bool has_bytes_as_tokens, Request& request) {
  const auto* expected = R"(expected a list of texts and tokens as "stop")";
  expect(stops.is_array(), expected);
  for (const auto& stop : stops) {
    if (stop.is_number_integer()) {
      request.options.stop_tokens().push_back(stop.get<int64_t>());
      continue;
    }
    expect(stop.is_string() && stop != "", expected);
    expect(
        has_bytes_as_tokens,
        R"(expected tokens as "stop": those of the model are not bytes)");
    request.stop_texts.push_back(stop.get<std::string>());
  }
}

} // namespace

Request read_request(const json& line, bool has_bytes_as_tokens) {
  check_fields(line);
  Request request;
  request.id = line.at("id").get<std::string>();
  request.prompt = prompt_of(line, has_bytes_as_tokens);
  auto& options = request.options;
  if (line.contains("max_tokens")) {
    options.max_new_tokens(integer_of(line["max_tokens"], "max_tokens"));
    expect(options.max_new_tokens() > 0, R"(expected "max_tokens" > 0)");
  }
  if (line.contains("temperature")) {
    options.temperature(number_of(line["temperature"], "temperature"));
  }
  if (line.contains("top_k")) {
    options.top_k(integer_of(line["top_k"], "top_k"));
  }
  if (line.contains("top_p")) {
    options.top_p(number_of(line["top_p"], "top_p"));
  }
  if (line.contains("seed")) {
    expect(
        line["seed"].is_number_unsigned(),
        R"(expected an integer from 0 to 2^64 - 1 as "seed")");
    options.seed(line["seed"].get<uint64_t>());
  }
  if (line.contains("stop")) {
    read_stops(line["stop"], has_bytes_as_tokens, request);
  }
  return request;
}

std::vector<int64_t> bytes_of(const std::string& text) {
  std::vector<int64_t> tokens;
  tokens.reserve(text.size());
  for (const auto byte : text) {
    tokens.push_back(static_cast<unsigned char>(byte));
  }
  return tokens;
}

} // namespace serve
