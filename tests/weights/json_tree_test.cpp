// The tree of a configuration.

#include <format_text.h>
#include <json_tree.h>
#include <support/costs.h>
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
  CHECK(tree.fields()[0].first == "a");
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

TEST_CASE("A text that is no JSON gives no tree") {
  for (const auto* text : {"", "{", "[1,]", "{\"a\":1} x", "{\"a\" 1}"}) {
    CAPTURE(text);
    CHECK(parsed(text).is_null());
  }
  CHECK(parsed(std::string(64, '[') + std::string(64, ']')).is_list());
  THROWS_WITH(
      parsed(std::string(65, '[') + std::string(65, ']')),
      "\"config.json\" is nested deeper than 64");
}

TEST_CASE("Of a name that comes twice the last one counts") {
  const auto tree = parsed(R"({"a":1,"b":2,"a":3,"b":4,"a":5})");
  CHECK(tree == parsed(R"({"b":4,"a":5})"));
  CHECK(tree != parsed(R"({"b":4,"a":1})"));
  std::string text = "{";
  for (int i = 0; i < 999; ++i) {
    text += format_text("\"{}\":{},", i % 111, i);
  }
  const auto many = parsed(text + "\"x\":0}");
  CHECK(many.fields().size() == 112);
  for (int i = 0; i < 111; ++i) {
    CHECK(many.get(std::to_string(i)).as_integer() == 888 + i);
  }
  CHECK(parsed("[1]") == parsed("[1.0]"));
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
    CHECK(parsed(text).is_null());
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
#if !defined(__SANITIZE_ADDRESS__)
  CHECK(costs.seconds < 3);
#endif
}

} // namespace json_tree_test
