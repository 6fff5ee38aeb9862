#include <harness/machine.h>

#include <torch_attention/version.h>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <chrono>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

namespace torch_attention::benchmarks {

namespace {

/// Returns the value of the first line of /proc/cpuinfo with this name, or "".
std::string cpu_info(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const auto colon = line.find(": ");
    if (line.rfind(name, 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "";
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

} // namespace

ProcessorTime processor_time_of(const std::string& stat) {
  std::istringstream words(stat);
  std::string name;
  words >> name;
  ProcessorTime time;
  // user, nice, system, idle, iowait, irq, softirq, steal; then guests, whose
  // time is in user as well.
  constexpr int kFields = 8;
  constexpr int kIdle = 3;
  constexpr int kWaiting = 4;
  double ticks = 0;
  for (int i = 0; name == "cpu" && i < kFields && words >> ticks; ++i) {
    time.all += ticks;
    time.busy += i == kIdle || i == kWaiting ? 0 : ticks;
  }
  return time;
}

double busy_threads() {
  constexpr const char* kPath = "/proc/stat";
  const auto before = processor_time_of(first_line(kPath));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto after = processor_time_of(first_line(kPath));
  const auto all = after.all - before.all;
  return all > 0 ? (after.busy - before.busy) / all *
          static_cast<double>(std::thread::hardware_concurrency())
                 : 0;
}

Machine this_machine() {
  Machine machine;
  machine.cpu = cpu_info("model name");
  // The first on x86, the second on ARM64.
  std::istringstream words(cpu_info("flags") + " " + cpu_info("Features"));
  std::set<std::string> flags;
  std::string word;
  while (words >> word) {
    flags.insert(word);
  }
  for (const auto* name :
       {"sse4_2",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_bf16",
        "asimd",
        "sve",
        "bf16"}) {
    if (flags.count(name) > 0) {
      machine.instruction_sets.emplace_back(name);
    }
  }
  machine.libtorch_instruction_set = at::get_cpu_capability();
  machine.libtorch = TORCH_VERSION;
  machine.torch_attention = TORCH_ATTENTION_VERSION;
  machine.cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  machine.threads = at::get_num_threads();
  machine.busy = busy_threads();
  return machine;
}

} // namespace torch_attention::benchmarks
