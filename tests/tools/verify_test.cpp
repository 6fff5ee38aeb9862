#include <support/close.h>
#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <tools/verify.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

namespace verify_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::tools;

namespace {

namespace fs = std::filesystem;

/// The archives that Python exported, by name.
std::vector<std::string> golden_archives() {
  std::vector<std::string> archives;
  for (const auto& entry : fs::directory_iterator(golden(""))) {
    const auto path = entry.path().string();
    if (entry.is_regular_file() &&
        path.find(".expected.pt") == std::string::npos) {
      archives.push_back(path);
    }
  }
  std::sort(archives.begin(), archives.end());
  return archives;
}

std::string golden_case(const std::string& part) {
  for (const auto& archive : golden_archives()) {
    if (archive.find(part) != std::string::npos) {
      return archive;
    }
  }
  FAIL("no golden archive has \"" << part << "\" in its name");
  return "";
}

std::vector<torch::Device> devices() {
  std::vector<torch::Device> result = {torch::kCPU};
  if (torch::cuda::is_available()) {
    result.emplace_back(torch::kCUDA);
  }
  return result;
}

} // namespace

TEST_CASE(
    "Every golden case agrees with Python: outputs, gradients, training") {
  const auto archives = golden_archives();
  REQUIRE(archives.size() >= 12);
  const auto archive = GENERATE_COPY(from_range(archives));
  const auto verification_case = make_case(archive, {});
  REQUIRE(verification_case.expected.size() > 5);
  REQUIRE(verification_case.draws.defined());
  if (has_other_random_stream(verification_case)) {
    WARN(
        verification_case.name
        << ": this LibTorch has another random stream; the test "
           "tools.verify_again compares new results");
  }
  for (const auto& device : devices()) {
    for (const auto kernel :
         {Kernel::kReference, Kernel::kFused, Kernel::kAuto}) {
      if (!is_comparable(verification_case, device, kernel)) {
        continue;
      }
      const auto verdict = verify(verification_case, device, kernel);
      CAPTURE(
          verdict.case_name,
          verdict.device,
          verdict.kernel,
          verdict.worst,
          verdict.difference.absolute,
          verdict.error);
      CHECK(verdict.passed());
    }
  }
}

TEST_CASE("Results of another random stream are left out, and this is said") {
  auto other = make_case(golden_case("single-4to4-bias-causal"), {});
  REQUIRE(other.has_dropout());
  other.draws = random_draws();
  CHECK_FALSE(has_other_random_stream(other));
  CHECK(is_comparable(other, torch::kCPU, Kernel::kReference));
  CHECK_FALSE(is_comparable(other, torch::kCPU, Kernel::kFused));
  other.draws = other.draws.logical_not();
  CHECK(has_other_random_stream(other));
  CHECK_FALSE(is_comparable(other, torch::kCPU, Kernel::kReference));
  other.run.training = false;
  CHECK(is_comparable(other, torch::kCPU, Kernel::kReference));

  std::ostringstream out;
  VerdictTable table(out, 4);
  table.add_incomparable(/*other_stream=*/false);
  table.add_incomparable(/*other_stream=*/true);
  table.add_incomparable(/*other_stream=*/true);
  CHECK(table.finish(1));
  CHECK_THAT(
      out.str(),
      ContainsText("Left out: 2 runs under dropout. Their results were "
                   "recorded with the random stream of"));
}

TEST_CASE("A sample of the random stream leaves the stream as it was") {
  torch::manual_seed(7);
  const auto expected = torch::rand({4});
  torch::manual_seed(7);
  CHECK(random_draws().equal(random_draws()));
  CHECK(torch::rand({4}).equal(expected));
}

TEST_CASE("A result that differs fails, and its tensor is named") {
  auto verification_case = make_case(golden_case("mha-h2-3to2"), {});
  auto& expected = verification_case.expected;
  const auto* name = GENERATE(
      "output",
      "gradient of input",
      "gradient of W_key.weight",
      "trained out_proj.bias");
  CAPTURE(name);
  REQUIRE(expected.contains(name));
  SECTION("by a little") {
    expected[name] = expected[name] + 1e-2;
  }
  SECTION("by NaN") {
    expected[name] = expected[name] * std::nan("");
  }
  SECTION("by infinity") {
    expected[name] = expected[name] / 0;
  }
  SECTION("by its shape") {
    expected[name] = expected[name].unsqueeze(0);
  }
  const auto verdict =
      verify(verification_case, torch::kCPU, Kernel::kReference);
  CHECK_FALSE(verdict.passed());
  CHECK(verdict.worst == name);
}

TEST_CASE("A tensor that our module does not give fails") {
  auto verification_case = make_case(golden_case("mha-h2-3to2"), {});
  verification_case.expected.insert("gradient of more", torch::ones({1}));
  const auto verdict =
      verify(verification_case, torch::kCPU, Kernel::kReference);
  CHECK_FALSE(verdict.passed());
  CHECK(verdict.worst == "gradient of more");
}

TEST_CASE("An archive without recorded results is compared with its own code") {
  const TemporaryFolder folder;
  const auto copy = [&](const std::string& part) {
    const auto path = folder.file(part + ".pt");
    fs::copy_file(golden_case(part), path);
    return path;
  };
  std::ostringstream out;

  SECTION("which is found from its keys") {
    const auto part = GENERATE(
        as<std::string>(),
        "self-v1-3to2",
        "self-v2-4to4-bias",
        "single-3to2",
        "wrapper-h2-3to2");
    CHECK(verify_files({copy(part)}, "", {}, out));
    CHECK_THAT(out.str(), ContainsText("1 cases, 3 runs: 3 ok, 0 failed."));
  }
  SECTION("with the number of heads given") {
    ArchiveOptions options;
    options.num_heads = 2;
    CHECK(verify_files({copy("mha-h2-3to2")}, "cpu", options, out));
    options.num_heads = 1;
    CHECK_FALSE(
        verify_files({folder.file("mha-h2-3to2.pt")}, "cpu", options, out));
  }
  SECTION("with the number of heads found") {
    CHECK(verify_files({copy("mha-h2-3to2")}, "cpu", {}, out));
    CHECK_THAT(
        out.str(),
        ContainsText("The number of heads is 2: the only one with which the "
                     "archive agrees.") &&
            ContainsText("3 ok, 0 failed."));
  }
  SECTION("unless several numbers of heads agree") {
    // With one token, each head attends to that alone.
    ArchiveOptions options;
    options.tokens = 1;
    CHECK_FALSE(verify_files({copy("mha-h2-3to2")}, "cpu", options, out));
    CHECK_THAT(
        out.str(),
        ContainsText("several numbers of heads agree with the archive on this "
                     "input: 1, 2. Give one with --num-heads"));
  }
  SECTION("unmasked") {
    ArchiveOptions options;
    options.unmasked = true;
    CHECK(
        verify_files({copy("single-4to1-bias-unmasked")}, "cpu", options, out));
    CHECK_FALSE(verify_files(
        {folder.file("single-4to1-bias-unmasked.pt")}, "cpu", {}, out));
  }
}

TEST_CASE("Weights without code or recorded results say what they lack") {
  const TemporaryFolder folder;
  const auto path = folder.file("weights.safetensors");
  save_weights(*CausalAttention(3, 2, 4, 0.0), path);
  std::ostringstream out;
  CHECK_FALSE(verify_files({path}, "cpu", {}, out));
  CHECK_THAT(out.str(), ContainsText("which has weights and no code"));
  CHECK_THAT(out.str(), ContainsText("torch.jit.trace"));
  CHECK_THAT(out.str(), ContainsText("weights.expected.pt"));
}

TEST_CASE("A folder is verified whole, and a file that fails fails the whole") {
  const TemporaryFolder folder;
  std::ostringstream out;
  CHECK(verify_files({golden("")}, "", {}, out));
  CHECK_THAT(out.str(), ContainsText(", 0 failed."));
  CHECK_THAT(out.str(), !ContainsText("FAILED"));
  CHECK_FALSE(verify_files({golden(""), folder.file("none.pt")}, "", {}, out));
  CHECK_THAT(
      out.str(),
      ContainsText("FAILED: ") && ContainsText(": there is no file \""));
  THROWS_WITH(
      verify_files({folder.path()}, "", {}, out),
      "has no files *.pt or *.safetensors");
}

} // namespace verify_test
