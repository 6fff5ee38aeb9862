// The tree of a configuration, while memory runs out.

#include <json_tree.h>
#include <memory/computation.h>

#include <memory>
#include <sstream>

namespace json_tree_memory_test {

using namespace torch_attention::testing;
using torch_attention::Json;

TEST_CASE("A tree is read, copied and changed as a whole or not at all") {
  const std::string text =
      R"({"a long name of a field":{"a long name in it":[1,"a long text ...."]},)"
      R"("layers":[{"b":1},{"b":2}],"b":"a text too long to be kept inside"})";
  const auto read = [&] {
    std::istringstream stream(text);
    return Json::parse(stream, "config.json", 64);
  };
  const auto before = read();
  auto expected = before;
  expected.update(*before.find("a long name of a field"));
  expected.set("b", *before.find("layers"));
  check_no_faults(fail_each_allocation([&] {
    const auto result = std::make_shared<Json>();
    Attempt attempt;
    attempt.run = [&, result] {
      auto tree = read();
      const auto copy = tree;
      tree.update(copy.as_object()->get("a long name of a field"));
      tree.set("b", copy.get("layers"));
      *result = tree;
    };
    attempt.changed = [=] { return result->is_null() ? "" : "half a tree"; };
    attempt.wrong = [&, result] {
      return *result == expected ? "" : result->shown(1000);
    };
    return attempt;
  }));
}

TEST_CASE("An update without memory leaves the fields as they were") {
  const auto before =
      Json::parse(R"({"b":"a text too long to be kept inside"})");
  const auto other = Json::parse(
      R"({"a":"another text that is not kept inside","b":[1],"c":{"d":2}})");
  check_no_faults(fail_each_allocation([&] {
    const auto tree = std::make_shared<Json>(before);
    Attempt attempt;
    attempt.run = [&other, tree] { tree->update(other); };
    attempt.changed = [&before, tree] {
      return *tree == before ? "" : tree->shown(1000);
    };
    attempt.wrong = [&other, tree] {
      return *tree == other ? "" : tree->shown(1000);
    };
    return attempt;
  }));
}

} // namespace json_tree_memory_test
