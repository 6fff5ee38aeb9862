#include <harness/machine.h>

#include <torch_attention/version.h>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

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

} // namespace

Machine this_machine() {
  Machine machine;
  machine.cpu = cpu_info("model name");
  std::istringstream words(cpu_info("flags"));
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
        "amx_bf16"}) {
    if (flags.count(name) > 0) {
      machine.instruction_sets.emplace_back(name);
    }
  }
  machine.libtorch_instruction_set = at::get_cpu_capability();
  machine.libtorch = TORCH_VERSION;
  machine.torch_attention = TORCH_ATTENTION_VERSION;
  machine.cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  machine.threads = at::get_num_threads();
  return machine;
}

} // namespace torch_attention::benchmarks
