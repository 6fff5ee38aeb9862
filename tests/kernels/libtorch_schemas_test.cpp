// LibTorch's fused kernels are called as every version of it names their
// arguments.

#include <kernels/libtorch/fused_arguments.h>
#include <support/test.h>

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

namespace libtorch_schemas_test {

using namespace torch_attention::kernels;
using torch_attention::testing::ContainsText;

namespace {

/// Returns a call with all tensors.
FusedCall whole_call() {
  FusedCall call;
  call.query = call.key = call.value = torch::zeros({1, 2, 1, 8});
  const auto starts = torch::zeros({2}, torch::kInt);
  call.packed = PackedStarts{starts, starts, starts, 2, 2};
  call.rule.scale = 1;
  call.rule.causal = true;
  call.rule.window = 1;
  call.added = call.query;
  return call;
}

/// Returns the arguments that we name, by operator.
std::map<std::string, NamedArguments> named_arguments() {
  const auto call = whole_call();
  const auto& x = call.query;
  const FusedResults results{x, x, x, x};
  return {
      {"aten::_flash_attention_forward", flash_arguments(call)},
      {"aten::_flash_attention_backward",
       flash_backward_arguments(call, results, x)},
      {"aten::_efficient_attention_forward", efficient_arguments(call, true)},
      {"aten::_efficient_attention_backward",
       efficient_backward_arguments(call, results, x)}};
}

/// Calls `fn` with the versions and the schema of each line.
void for_each_schema(
    const std::function<void(const std::string&, const c10::FunctionSchema&)>&
        fn) {
  std::ifstream file(
      std::string(TORCH_ATTENTION_SOURCE_DIR) +
      "/tests/kernels/libtorch_schemas.txt");
  REQUIRE(file);
  std::string line;
  while (std::getline(file, line)) {
    const auto end = line.find(": ");
    if (line.rfind('#', 0) != 0 && end != std::string::npos) {
      fn(line.substr(0, end), torch::jit::parseSchema(line.substr(end + 2)));
    }
  }
}

} // namespace

TEST_CASE("Every version of LibTorch has the arguments that we name") {
  const auto named = named_arguments();
  std::multiset<std::string> seen;
  for_each_schema([&](const auto& versions, const auto& schema) {
    CAPTURE(versions, schema.name());
    const auto stack = stack_of(schema, named.at(schema.name()));
    // As the dispatcher checks them.
    for (size_t i = 0; i < stack.size(); ++i) {
      const auto& argument = schema.arguments()[i];
      CAPTURE(argument.name());
      const auto type = c10::unshapedType(stack[i].type());
      CHECK(
          (type->isSubtypeOf(*argument.type()) ||
           type->isSubtypeOf(*argument.real_type())));
    }
    std::istringstream each(versions);
    for (std::string version; each >> version;) {
      seen.insert(schema.name() + " " + version);
    }
  });
  // Ten versions, four operators, each once.
  CHECK(seen.size() == 40);
  CHECK(std::set<std::string>(seen.begin(), seen.end()).size() == 40);
}

TEST_CASE("This LibTorch has a schema that is known") {
  for (const auto& [name, arguments] : named_arguments()) {
    CAPTURE(name);
    const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
    REQUIRE(op);
    CHECK_NOTHROW(stack_of(op->schema(), arguments));
    bool known = false;
    for_each_schema([&](const auto& /*versions*/, const auto& schema) {
      known = known || schema == op->schema();
    });
    CHECK(known);
  }
}

TEST_CASE("An argument that LibTorch lacks or adds is an error") {
  const auto schema = torch::jit::parseSchema("aten::f(Tensor a, int b) -> ()");
  const auto one = torch::ones({1});
  CHECK_THROWS_WITH(
      stack_of(schema, {{{"a"}, one}, {{"c"}, 1}}),
      ContainsText(
          "expected LibTorch's operator aten::f to have the argument c"));
  CHECK_THROWS_WITH(
      stack_of(schema, {{{"a"}, one}}),
      ContainsText("expected no other arguments") && ContainsText("but got b"));
  CHECK_NOTHROW(stack_of(schema, {{{"old", "a"}, one}, {{"b"}, 1}}));
  CHECK_THROWS_WITH(
      PrivateOperator("aten::no_such_operator")({}),
      ContainsText("a LibTorch with the operator aten::no_such_operator"));
}

} // namespace libtorch_schemas_test
