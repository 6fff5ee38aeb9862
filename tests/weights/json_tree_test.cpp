// The tree of a configuration.

#include <format_text.h>
#include <json_tree.h>
#include <support/costs.h>
#include <support/sanitized.h>
#include <support/test.h>

#include <sstream>

namespace json_tree_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

Json parsed(const std::string& text, size_t deepest = 64) {
  std::istringstream stream(text);
  return Json::parse(stream, "config.json", deepest);
}

/// An object of the fields first, first + 1, ... with this value.
std::string many_fields(const std::string& start, int count, int value) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += format_text("{}\"{}{}\":{}", i == 0 ? "{" : ",", start, i, value);
  }
  return text + "}";
}

} // namespace

TEST_CASE("A tree has the values of its text") {
  const auto tree =
      parsed(R"({"b":[1,-2.5,"x",true,null,{}],"a":{"c":9223372036854775807},)"
             R"("d":18446744073709551615})");
  REQUIRE(tree.fields().size() == 3);
  CHECK(tree.fields().begin()->first == "a");
  const auto& list = tree.find("b")->elements();
  REQUIRE(list.size() == 6);
  CHECK(list[0].as_integer() == 1);
  CHECK(list[0].as_number() == 1.0);
  CHECK_FALSE(list[1].as_integer());
  CHECK(list[1].as_number() == -2.5);
  CHECK(list[2].as_text() == "x");
  CHECK(list[3].as_flag() == true);
  CHECK(list[4].is_null());
  CHECK(list[5] == Json::object());
  CHECK(tree.find("a")->find("c")->as_integer() == INT64_MAX);
  CHECK_FALSE(tree.find("d")->as_integer());
  CHECK(tree.find("d")->as_number() == 0x1p64);
  CHECK(tree.find("e") == nullptr);
  const std::string shown =
      R"({"a":{"c":9223372036854775807},"b":[1,-2.5,"x",true,null,{}],)"
      R"("d":1.8446744073709552e+19})";
  CHECK(tree.shown(100) == shown);
  CHECK(tree.shown(20) == shown.substr(0, 20) + "...");
}

TEST_CASE("A text that is no JSON is refused with the place") {
  const auto [text, place] = GENERATE(table<std::string, int>({
      {"", 1},
      {"{", 2},
      {"[1,]", 4},
      {"{\"a\":1} x", 9},
      {"{\"a\" 1}", 6},
      {"[1e400]", 6},
      {"[\"\xff\"]", 3},
      {std::string("{}\0", 3), 3},
      // In bytes of the file, however its numbers are read.
      {"[NaN,-Infinity,\"NaN\",]", 22},
  }));
  THROWS_WITH(
      parsed(text),
      format_text(
          "expected a JSON object in \"config.json\": the file's JSON is none, "
          "or is cut short (at byte {})",
          place));
}

TEST_CASE("A text is not nested deeper than allowed") {
  CHECK(parsed(std::string(64, '[') + std::string(64, ']')).is_list());
  THROWS_WITH(
      parsed(std::string(65, '[') + std::string(65, ']')),
      "\"config.json\" is nested deeper than 64");
}

TEST_CASE("The last of equal names counts") {
  CHECK(
      parsed(R"({"a":1,"b":2,"a":3,"b":4,"a":5})") ==
      parsed(R"({"b":4,"a":5})"));
  CHECK(
      parsed(R"({"a":{"b":1},"a":{"c":[2,{"d":3,"d":4}]}})") ==
      parsed(R"({"a":{"c":[2,{"d":4}]}})"));
  CHECK(parsed(R"([{"":1,"":2}])") == parsed(R"([{"":2}])"));
  const auto text = many_fields("b", 1000, 1);
  CHECK(parsed(text).fields().size() == 1000);
  const auto changed =
      parsed(text.substr(0, text.size() - 1) + R"(,"b500":2})");
  CHECK(changed.fields().size() == 1000);
  CHECK(changed.get("b500").as_integer() == 2);
}

TEST_CASE("Trees are equal if their values are") {
  CHECK(parsed(R"({"a":1,"b":[2]})") == parsed(R"({"b":[2.0],"a":1})"));
  CHECK(parsed(R"({"a":1})") != parsed(R"({"a":2})"));
  CHECK(parsed("[1]") != parsed("[true]"));
}

TEST_CASE("Python's numbers that are not finite are read") {
  const auto tree = parsed(
      R"({"a":[0.0, Infinity],"b":-Infinity,"c": NaN,"\"NaN":"NaN \\"})");
  CHECK(
      tree ==
      parsed(R"({"a":[0.0,{"__float__":"Infinity"}],)"
             R"("b":{"__float__":"-Infinity"},"c":{"__float__":"NaN"},)"
             R"("\"NaN":"NaN \\"})"));
  for (const auto* text : {"nan", "+Infinity", "Inf", "NaNNaN", "\"NaN"}) {
    CAPTURE(text);
    THROWS_WITH(parsed(text), "JSON is none, or is cut short");
  }
}

TEST_CASE("Fields are set, replaced and taken away") {
  auto tree = parsed(R"({"b":1,"d":2})");
  tree.set("c", Json(int64_t{3}));
  tree.set("b", Json(std::string("x")));
  tree.erase("d");
  tree.erase("e");
  CHECK(tree == parsed(R"({"b":"x","c":3})"));
  tree.update(parsed(R"({"a":0,"c":[]})"));
  CHECK(tree == parsed(R"({"a":0,"b":"x","c":[]})"));
  CHECK(tree.find_to_change("z") == nullptr);
  CHECK(tree.get("z").is_null());
  CHECK(tree.get("b").get("c").is_null());
  auto list = parsed("[]");
  THROWS_WITH(list.set("a", Json()), "expected a JSON object, but got []");
}

TEST_CASE("Many fields are set in one go") {
  constexpr int kFields = 200'000;
  auto tree = parsed(many_fields("b", kFields, 1));
  const auto other = parsed(many_fields("a", kFields, 2));
  const auto costs = costs_of([&] { tree.update(other); });
  CHECK(tree.fields().size() == 2 * kFields);
  if (!kIsSanitized) {
    CHECK(costs.seconds < 3);
  }
}

} // namespace json_tree_test
