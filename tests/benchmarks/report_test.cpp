#include <support/test.h>

#include <harness/report.h>

#include <sstream>
#include <string>
#include <vector>

namespace report_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::benchmarks;

namespace {

CandidateResult candidate_of(
    const std::string& name,
    double seconds,
    double ratio,
    double per_second,
    int64_t bytes) {
  CandidateResult candidate;
  candidate.name = name;
  candidate.seconds = {seconds, seconds, seconds};
  candidate.ratio = tools::Spread{ratio, ratio * 0.9, ratio * 1.1};
  candidate.per_second = per_second;
  candidate.share_of_roof = 0.5;
  candidate.peak_memory.allocated = bytes;
  return candidate;
}

std::vector<std::string> lines_of(const std::ostringstream& out) {
  std::istringstream in(out.str());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

} // namespace

TEST_CASE("The columns of a benchmark stay apart, and in line with the head") {
  CaseResult result;
  result.name = "module B1 T16384";
  result.amount = 1.234e12;
  result.roof_per_second = 2.345e12;
  result.candidates = {
      candidate_of("LibTorch's fused attention", 2e-6, 0.012, 3e6, 96),
      candidate_of("Python's sequence, eager", 0.9999, 9.99, 4.5e11, 987654321),
      candidate_of(
          "ours, 4 x T4096", 999.96e-6, 1234.5, 1.2345e12, 98765432100),
      candidate_of(
          "nn::MultiheadAttention", 12345, 98765.4, 9.8e13, 1LL << 50)};
  std::ostringstream head;
  print_head({}, head);
  std::ostringstream out;
  print_case(result, out);

  const auto rows = lines_of(out);
  REQUIRE(rows.size() == 5);
  CHECK_THAT(rows[0], ContainsText(": 1234 GFLOP, "));
  CHECK_THAT(rows[0], ContainsText("roof 2345 GFLOP/s"));
  CHECK_THAT(rows[1], ContainsText("attention    2.00 us   0.012  (0.011 - "));
  CHECK_THAT(rows[3], ContainsText("  1000 us    1234  (1111 - 1358)  "));
  CHECK_THAT(rows[3], ContainsText("  1234 GFLOP/s  "));
  CHECK_THAT(rows[3], ContainsText("  98.8 GB"));
  CHECK_THAT(rows[4], ContainsText("  12345 s   98765  (88889 - 108642)  "));
  CHECK_THAT(rows[4], ContainsText("  98000 GFLOP/s  "));
  CHECK_THAT(rows[4], ContainsText("  1125900 GB"));
  for (size_t i = 1; i < rows.size(); ++i) {
    CAPTURE(rows[i]);
    CHECK(rows[i].size() == lines_of(head).back().size());
  }
}

TEST_CASE("A benchmark warns of other programs that compute") {
  const auto head_of = [](double busy) {
    BenchResult result;
    result.machine.cores = 2;
    result.machine.busy = busy;
    std::ostringstream out;
    print_head(result, out);
    return out.str();
  };
  CHECK_THAT(
      head_of(1.26),
      ContainsText("warning: other programs keep 1.3 of 2 cores busy"));
  CHECK_THAT(head_of(0.1), !ContainsText("warning"));
}

TEST_CASE("The busy time of a processor has no idle and no guest's time") {
  const auto time = processor_time_of("cpu  1 2 4 100 200 8 16 32 1000 2000");
  CHECK(time.busy == 63);
  CHECK(time.all == 363);
  CHECK(processor_time_of("").all == 0);
  CHECK(processor_time_of("intr 1 2").all == 0);
}

} // namespace report_test
