#include <support/temporary_folder.h>
#include <support/test.h>

#include <format_text.h>
#include <tools/archive_code.h>
#include <tools/verify.h>

#include <cmath>
#include <cstdlib>
#include <sstream>

namespace wrong_functions_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::tools;

namespace {

/// The function of an archive's code; the weights are those of a
/// MultiHeadAttention in any case.
struct Function {
  int64_t width = 24;
  int64_t num_heads = 6;
  double scale = 1;
  bool masked = true;
  bool swapped = false;
  bool has_mask = true;
  /// Divides the queries, not the scores.
  bool scales_first = false;
  /// Lines at the end, which may change `y`.
  std::string more;
};

const std::vector<std::string> kLayers = {
    "W_query",
    "W_key",
    "W_value",
    "out_proj"};

std::string code_of(const Function& function) {
  std::string code =
      "def forward(self, x):\n  B = x.size(0)\n  T = x.size(1)\n";
  for (size_t i = 0; i < 3; ++i) {
    code += format_text(
        "  {0} = torch.linear(x, self.{1}.weight, self.{1}.bias)"
        ".view([B, T, {2}, -1]).transpose(1, 2)\n",
        "qkv"[i],
        kLayers[i],
        function.num_heads);
  }
  const auto head_dim = static_cast<double>(function.width) /
      static_cast<double>(function.num_heads);
  const auto divided = [&](const char* name) {
    return format_text(
        "  {0} = torch.div({0}, {1})\n",
        name,
        std::sqrt(head_dim) / function.scale);
  };
  code += function.swapped ? "  k, v = v, k\n" : "";
  code += function.scales_first ? divided("q") : "";
  code += "  scores = torch.matmul(q, k.transpose(2, 3))\n";
  if (function.has_mask) {
    // Without its result, as masked_fill in place of masked_fill_.
    code += format_text(
        "  {}torch.masked_fill(scores, self.mask[:T, :T] > 0, -float('inf'))\n",
        function.masked ? "scores = " : "");
  }
  code += function.scales_first ? "" : divided("scores");
  code += format_text(
      "  y = torch.matmul(torch.softmax(scores, -1), v)\n"
      "  y = y.transpose(1, 2).reshape([B, T, {}])\n"
      "  y = torch.linear(y, self.out_proj.weight, self.out_proj.bias)\n"
      "{}  return y\n",
      function.width,
      function.more);
  return code;
}

/// Writes an archive of that function. `change` is added to one element of the
/// weight of `layer`.
std::string write_archive(
    const TemporaryFolder& folder,
    const std::string& name,
    const Function& function,
    torch::Dtype dtype,
    const std::string& layer = "",
    double change = 0) {
  torch::manual_seed(7);
  const auto C = function.width;
  const auto draw = [&](torch::IntArrayRef sizes) {
    const auto values = torch::randn(sizes, torch::kDouble);
    return values / std::sqrt(static_cast<double>(C));
  };
  torch::jit::Module module("Attention");
  for (const auto& key : kLayers) {
    auto weight = draw({C, C});
    if (key == layer) {
      weight[1][2] += change;
    }
    torch::jit::Module linear("Linear");
    linear.register_parameter("weight", weight.to(dtype), false);
    linear.register_parameter("bias", draw({C}).to(dtype), false);
    module.register_module(key, linear);
  }
  if (function.has_mask) {
    module.register_buffer("mask", torch::ones({12, 12}, dtype).triu(1));
  }
  module.define(code_of(function));
  const auto path = folder.file(name);
  module.save(path);
  return path;
}

enum class Source { kOwnCode, kRecorded, kRecordedWithoutCode };

/// Expects of the weights in `archive`, in the right function, what the code in
/// `other` gives.
VerificationCase case_of(
    const std::string& archive,
    const std::string& other,
    Source source) {
  ArchiveOptions options;
  options.num_heads = 6;
  auto result = make_case(other, options);
  result.archive = archive;
  if (source != Source::kOwnCode) {
    result.is_recorded = true;
    result.run.adamw.steps = 3;
    result.expected = run_code(load_code(other, ""), result.run);
    result.rounding = measure_rounding(archive, "", result.run);
  }
  if (source == Source::kRecordedWithoutCode) {
    result.rounding.clear();
  }
  return result;
}

bool any_kernel_passes(const VerificationCase& verification_case) {
  bool any = false;
  for (const auto kernel :
       {Kernel::kReference, Kernel::kFused, Kernel::kAuto}) {
    const auto verdict = verify(verification_case, torch::kCPU, kernel);
    CAPTURE(kernel, verdict.worst, verdict.error);
    CHECK(verdict.error.empty());
    any = any || verdict.passed();
  }
  return any;
}

bool all_kernels_pass(const VerificationCase& verification_case) {
  bool all = true;
  for (const auto kernel :
       {Kernel::kReference, Kernel::kFused, Kernel::kAuto}) {
    const auto verdict = verify(verification_case, torch::kCPU, kernel);
    UNSCOPED_INFO(
        kernel << ": " << verdict.worst << " " << verdict.difference.absolute
               << " of " << verdict.allowed << " " << verdict.error);
    all = all && verdict.passed();
  }
  return all;
}

/// A change of one weight that every kernel must see, where weights are about
/// 0.2.
double visible_change(torch::Dtype dtype) {
  switch (dtype) {
    case torch::kDouble:
      return 2e-6;
    case torch::kFloat:
      return 1e-4;
    case torch::kHalf:
      return 0.1;
    default:
      return 0.25;
  }
}

} // namespace

TEST_CASE("Every kernel fails a function that is not the module's") {
  const TemporaryFolder folder;
  const auto dtype =
      GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf);
  const auto source = GENERATE(
      Source::kOwnCode, Source::kRecorded, Source::kRecordedWithoutCode);
  CAPTURE(dtype, static_cast<int>(source));
  // Sources differ in the code of archives, which has no dtypes.
  if (source != Source::kOwnCode && dtype != torch::kFloat &&
      dtype != torch::kBFloat16 &&
      std::getenv("TORCH_ATTENTION_NIGHTLY") == nullptr) {
    return;
  }
  const auto right = write_archive(folder, "right.pt", {}, dtype);

  SECTION("but none the right one") {
    const auto verification_case = case_of(right, right, source);
    CHECK(all_kernels_pass(verification_case));
    const auto measured = source != Source::kRecordedWithoutCode;
    CHECK(
        verification_case.rounding.size() ==
        (measured ? verification_case.expected.size() : 0));
  }
  SECTION("nor one of another order of operations") {
    Function function;
    function.scales_first = true;
    const auto other = write_archive(folder, "other.pt", function, dtype);
    CHECK(all_kernels_pass(case_of(right, other, source)));
  }
  SECTION("with another function") {
    Function function;
    SECTION("of fewer heads") {
      function.num_heads = 4;
    }
    SECTION("of more heads") {
      function.num_heads = 8;
    }
    SECTION("of one head") {
      function.num_heads = 1;
    }
    SECTION("of the scale of one head") {
      function.scale = 1 / std::sqrt(6.0);
    }
    SECTION("of no scale") {
      function.scale = 2;
    }
    SECTION("without its mask") {
      function.masked = false;
    }
    SECTION("of key and value swapped") {
      function.swapped = true;
    }
    const auto other = write_archive(folder, "other.pt", function, dtype);
    CHECK_FALSE(any_kernel_passes(case_of(right, other, source)));
  }
  SECTION("with one other weight") {
    const auto layer = GENERATE(from_range(kLayers));
    CAPTURE(layer);
    const auto other = write_archive(
        folder, "other.pt", {}, dtype, layer, visible_change(dtype));
    CHECK_FALSE(any_kernel_passes(case_of(other, right, source)));
  }
}

TEST_CASE("Every kernel tells 12 heads from 16 in a module of 768") {
  const TemporaryFolder folder;
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16);
  Function function;
  function.width = 768;
  function.num_heads = 12;
  const auto archive = write_archive(folder, "large.pt", function, dtype);
  ArchiveOptions options;
  options.num_heads = 12;
  CHECK(all_kernels_pass(make_case(archive, options)));
  options.num_heads = 16;
  CHECK_FALSE(any_kernel_passes(make_case(archive, options)));
}

TEST_CASE("A verdict of failure names the options that agree") {
  const TemporaryFolder folder;
  Function function;
  ArchiveOptions options;
  options.num_heads = 6;
  std::string expected;
  SECTION("other heads") {
    options.num_heads = 4;
    expected = "The archive agrees with: --num-heads 6\n";
  }
  SECTION("heads that do not divide") {
    options.num_heads = 5;
    expected = "The archive agrees with: --num-heads 6\n";
  }
  SECTION("no mask") {
    function.masked = false;
    expected = "The archive agrees with: --num-heads 6 --unmasked\n";
  }
  SECTION("no mask in the file either") {
    function.masked = false;
    function.has_mask = false;
    expected = "The archive agrees with: --num-heads 6 --unmasked\n";
  }
  SECTION("no mask and other heads") {
    function.masked = false;
    options.num_heads = 3;
    expected = "The archive agrees with: --num-heads 6 --unmasked\n";
  }
  SECTION("a mask after all") {
    options.unmasked = true;
    expected = "The archive agrees with: --num-heads 6 without --unmasked\n";
  }
  SECTION("none") {
    function.scale = 2;
    expected = "The archive computes another function";
  }
  const auto archive =
      write_archive(folder, "archive.pt", function, torch::kFloat);
  std::ostringstream out;
  CHECK_FALSE(verify_files({archive}, "cpu", options, out));
  CHECK_THAT(out.str(), ContainsText(expected));
  CHECK_THAT(out.str(), ContainsText("3 runs: 0 ok, 3 failed."));
}

TEST_CASE("An archive without a mask is compared on more than one token") {
  const TemporaryFolder folder;
  Function function;
  function.masked = false;
  function.has_mask = false;
  const auto archive =
      write_archive(folder, "archive.pt", function, torch::kFloat);
  ArchiveOptions options;
  options.unmasked = true;
  options.num_heads = 6;
  const auto right = make_case(archive, options);
  CHECK(right.run.input.size(1) == options.tokens);
  CHECK(all_kernels_pass(right));
}

TEST_CASE("Code that computes something else in float64 fails, and is named") {
  const TemporaryFolder folder;
  Function function;
  // As a number, TorchScript's for torch.float64.
  function.more = "  if x.dtype == 7:\n    y = 2 * y\n";
  const auto archive =
      write_archive(folder, "archive.pt", function, torch::kFloat);
  ArchiveOptions options;
  options.num_heads = 6;
  std::ostringstream out;
  CHECK_FALSE(verify_files({archive}, "cpu", options, out));
  CHECK_THAT(
      out.str(), ContainsText("FAILED: the archive's own code gives another "));
  CHECK_THAT(out.str(), ContainsText("3 failed."));
}

TEST_CASE(
    "Code that does not run in float64 is compared by its dtype's bound") {
  const TemporaryFolder folder;
  Function function;
  // 15 is torch.bfloat16.
  function.more = "  y = torch.matmul(y, torch.eye(24).to(15))\n";
  const auto archive =
      write_archive(folder, "archive.pt", function, torch::kBFloat16);
  ArchiveOptions options;
  options.num_heads = 6;
  const auto right = make_case(archive, options);
  CHECK(right.rounding.empty());
  CHECK(all_kernels_pass(right));
  options.num_heads = 4;
  CHECK_FALSE(any_kernel_passes(make_case(archive, options)));
}

} // namespace wrong_functions_test
