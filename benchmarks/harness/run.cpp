#include <harness/run.h>

#include <error_message.h>
#include <harness/agreement.h>
#include <harness/report.h>

#include <ATen/Parallel.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <ostream>

namespace torch_attention::benchmarks {

namespace {

using RunClock = std::chrono::steady_clock;

/// No case of a quick run begins later, so that it ends within two minutes.
constexpr std::chrono::seconds kQuickDeadline{100};

tools::Effort effort_of(bool quick) {
  tools::Effort effort;
  if (quick) {
    effort.seconds = 2;
    effort.least_rounds = 3;
    effort.most_rounds = 15;
  }
  return effort;
}

/// Sets LibTorch's number of threads during its lifetime.
class ThreadsGuard {
 public:
  explicit ThreadsGuard(int64_t threads) : old_(at::get_num_threads()) {
    TORCH_CHECK(
        threads >= 0, "bench: expected threads >= 0, but got ", threads);
    if (threads > 0) {
      at::set_num_threads(static_cast<int>(threads));
    }
  }
  ~ThreadsGuard() {
    at::set_num_threads(old_);
  }
  ThreadsGuard(const ThreadsGuard&) = delete;
  ThreadsGuard& operator=(const ThreadsGuard&) = delete;
  ThreadsGuard(ThreadsGuard&&) = delete;
  ThreadsGuard& operator=(ThreadsGuard&&) = delete;

 private:
  int old_;
};

bool is_chosen(const Case& item, const RunOptions& options) {
  return (item.set != CaseSet::kSeries || options.series) &&
      (item.set != CaseSet::kShapes || options.shapes) &&
      (item.is_quick || !options.quick) &&
      item.name.find(options.only) != std::string::npos;
}

/// Opens a file that is written at the end. Opens it at the start, so that
/// minutes of measuring are not lost if it cannot be written. Returns none for
/// an empty path.
std::unique_ptr<std::ofstream> open_output(const std::string& path) {
  if (path.empty()) {
    return nullptr;
  }
  auto file = std::make_unique<std::ofstream>(path);
  TORCH_CHECK(file->good(), "bench: cannot write ", path);
  return file;
}

void close_output(std::ofstream& file, const std::string& path) {
  file.close();
  TORCH_CHECK(!file.fail(), "bench: cannot write ", path);
}

std::vector<PeakMemory> peak_memories_of(
    const std::vector<Candidate>& candidates) {
  std::vector<PeakMemory> memories;
  for (const auto& candidate : candidates) {
    memories.push_back(peak_memory_of([&] { candidate.run(); }));
    candidate.take_gradients();
  }
  return memories;
}

/// Measures interleaved, the roof last.
std::vector<std::vector<double>> times_of(
    const std::vector<Candidate>& candidates,
    const std::function<void()>& roof,
    const tools::Effort& effort) {
  std::vector<std::function<void()>> functions;
  for (const auto& candidate : candidates) {
    functions.emplace_back([&candidate] { candidate.run(); });
  }
  functions.push_back(roof);
  return tools::interleave(functions, effort);
}

void measure(
    const std::vector<Candidate>& candidates,
    const Roof& roof,
    const tools::Effort& effort,
    CaseResult& result) {
  const auto agreements = compare_candidates(candidates);
  for (const auto& agreement : agreements) {
    if (!agreement.problem.empty()) {
      result.problem = agreement.problem;
      return;
    }
  }
  const auto memories = peak_memories_of(candidates);
  const auto seconds = times_of(candidates, roof.reach(result.bound), effort);
  result.rounds = static_cast<int64_t>(seconds.front().size());
  result.roof_per_second =
      roof.amount(result.bound) / tools::spread_of(seconds.back()).median;
  for (size_t i = 0; i < candidates.size(); ++i) {
    // The time as if the candidate did all of the case's work.
    auto scaled = seconds[i];
    for (auto& value : scaled) {
      value *= candidates[i].times;
    }
    CandidateResult candidate;
    candidate.name = candidates[i].name;
    candidate.seconds = tools::spread_of(seconds[i]);
    if (i > 0) {
      candidate.ratio = tools::ratio_of(scaled, seconds.front());
    }
    candidate.per_second = result.amount / tools::spread_of(scaled).median;
    candidate.share_of_roof = candidate.per_second / result.roof_per_second;
    candidate.peak_memory = memories[i];
    candidate.difference = agreements[i].difference;
    result.candidates.push_back(candidate);
  }
}

CaseResult run_case(const Case& item, const Roof& roof, bool quick) {
  CaseResult result;
  result.name = item.name;
  result.work = item.work;
  result.recording = item.recording;
  result.bound = item.bound;
  result.amount = item.amount();
  try {
    const auto candidates = item.make_candidates(quick);
    const RecordingGuard recording(item.recording);
    measure(candidates, roof, effort_of(quick), result);
  } catch (const std::exception& error) {
    // A problem of one case, such as too little memory, is none of the others.
    result.problem = error_message(error);
  }
  return result;
}

RoofResult measure_roof(const Roof& roof) {
  return {roof.product(), roof.products(), roof.reading(), roof.triad()};
}

} // namespace

bool run_cases(
    std::vector<Case> all,
    const RunOptions& options,
    std::ostream& out) {
  std::vector<Case> cases;
  for (auto& item : all) {
    if (is_chosen(item, options)) {
      cases.push_back(std::move(item));
    }
  }
  TORCH_CHECK(
      !cases.empty(), "bench: no case has \"", options.only, "\" in its name");
  if (options.list) {
    for (const auto& item : cases) {
      out << item.name << "\n";
    }
    return true;
  }

  const auto start = RunClock::now();
  const ThreadsGuard threads(options.threads);
  const auto json = open_output(options.json);
  const auto csv = open_output(options.csv);
  BenchResult result;
  // Before the threads of the roof, which spin for a while.
  result.machine = this_machine();
  const Roof roof;
  result.roof = measure_roof(roof);
  result.is_quick = options.quick;
  print_head(result, out);
  bool all_agree = true;
  for (const auto& item : cases) {
    if (options.quick && RunClock::now() - start > kQuickDeadline) {
      out << item.name << "\n  left out: no time left for --quick\n";
      continue;
    }
    result.cases.push_back(run_case(item, roof, options.quick));
    print_case(result.cases.back(), out);
    out.flush();
    all_agree = all_agree && result.cases.back().problem.empty();
  }
  if (json) {
    write_json(result, *json);
    close_output(*json, options.json);
  }
  if (csv) {
    write_csv(result, *csv);
    close_output(*csv, options.csv);
  }
  return all_agree;
}

} // namespace torch_attention::benchmarks
