// Runs random cases until the time is over:
//   TORCH_ATTENTION_RANDOM_SECONDS  how long; an hour is 3600. By default until
//                                   enough small attentions are done as well
//   TORCH_ATTENTION_RANDOM_SEED     which cases, a number
//   TORCH_ATTENTION_RANDOM_CASE     only this one, as a failure has named it

#include <random/random.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/utils.h>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

namespace {

using torch_attention::random::Random;

struct Kind {
  const char* name;
  void (*check)(Random&);
  /// The number of cases in a row.
  int cases;
  int64_t done = 0;
};

Kind kinds[] = {
    {"attention", torch_attention::random::check_attention, 8},
    {"packed", torch_attention::random::check_packed, 4},
    {"masks", torch_attention::random::check_masks, 8},
    {"block_mask", torch_attention::random::check_block_mask, 6},
    {"by_loops", torch_attention::random::check_by_loops, 16},
    {"small_attention", torch_attention::random::check_small_attention, 6},
    {"non_finite", torch_attention::random::check_non_finite, 2},
    {"module", torch_attention::random::check_module, 3},
    {"cache", torch_attention::random::check_cache, 2},
    {"dropout", torch_attention::random::check_dropout, 1},
    {"failing_allocations",
     torch_attention::random::check_failing_allocations,
     1},
};

/// The current case, to be named if it ends the process.
std::string case_name;
Random* now = nullptr;

void say(const std::string& fault) {
  std::cout << "TORCH_ATTENTION_RANDOM_CASE=" << case_name << " " << fault
            << " for " << now->description() << std::endl;
}

void on_signal(int number) {
  // Signal handlers must not do this, but the process ends anyway.
  say("ended the process");
  std::signal(number, SIG_DFL);
  std::raise(number);
}

std::string setting(const char* name, const std::string& otherwise) {
  const auto* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

/// Runs a case. Returns whether it passed.
bool run(Kind& kind, uint64_t number) {
  case_name = c10::str(kind.name, ":", number);
  torch::manual_seed(number);
  Random random(number);
  now = &random;
  at::set_num_threads(static_cast<int>(random.integer(1, 2)));
  std::string fault;
  try {
    kind.check(random);
  } catch (const c10::Error& error) {
    fault = error.what_without_backtrace();
  } catch (const std::exception& error) {
    fault = error.what();
  }
  ++kind.done;
  if (!fault.empty()) {
    say(fault);
  }
  return fault.empty();
}

int run_one(const std::string& text) {
  const auto colon = text.find(':');
  for (auto& kind : kinds) {
    if (text.substr(0, colon) == kind.name && colon != std::string::npos) {
      const bool good = run(kind, std::stoull(text.substr(colon + 1)));
      std::cout << (good ? "passed" : "failed") << std::endl;
      return good ? 0 : 1;
    }
  }
  std::cout << "No such case: " << text << std::endl;
  return 1;
}

/// Returns how many attentions were compared with plain loops in float64.
int64_t small_attentions() {
  int64_t count = 0;
  for (const auto& kind : kinds) {
    if (kind.check == torch_attention::random::check_by_loops ||
        kind.check == torch_attention::random::check_small_attention) {
      count += kind.done;
    }
  }
  return count;
}

int run_many(double seconds, int64_t least, uint64_t seed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(
               std::chrono::steady_clock::now() - begin)
        .count();
  };
  std::cout << "TORCH_ATTENTION_RANDOM_SEED=" << seed
            << " TORCH_ATTENTION_RANDOM_SECONDS=" << seconds << std::endl;
  // Neighbouring seeds have no case in common for weeks.
  uint64_t number = seed << 32;
  int64_t faults = 0;
  while ((passed() < seconds || small_attentions() < least) && faults < 20) {
    for (auto& kind : kinds) {
      for (int i = 0; i < kind.cases; ++i) {
        faults += run(kind, number++) ? 0 : 1;
      }
    }
  }
  std::cout << faults << " faults in " << passed() << " seconds:";
  for (const auto& kind : kinds) {
    std::cout << " " << kind.name << " " << kind.done;
  }
  std::cout << std::endl;
  return faults == 0 ? 0 : 1;
}

} // namespace

int main(int /*argc*/, char* argv[]) {
  // Waiting threads would take time from others. OpenMP reads this before main
  // begins.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
    setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/1);
    execv("/proc/self/exe", argv);
  }
  for (const auto number : {SIGABRT, SIGFPE, SIGILL, SIGSEGV}) {
    std::signal(number, on_signal);
  }
  const auto one = setting("TORCH_ATTENTION_RANDOM_CASE", "");
  if (!one.empty()) {
    return run_one(one);
  }
  const auto seconds = setting("TORCH_ATTENTION_RANDOM_SECONDS", "");
  return run_many(
      std::stod(seconds.empty() ? SECONDS : seconds),
      seconds.empty() ? LEAST_SMALL_ATTENTIONS : 0,
      std::stoull(setting("TORCH_ATTENTION_RANDOM_SEED", "1")));
}
