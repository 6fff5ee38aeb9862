#include <torch_attention/device.h>

#include <check.h>

#include <torch/cuda.h>

#include <cpu/attention.h>

#include <algorithm>

namespace torch_attention {

namespace {

/// Returns the N of "cuda:N", 0 for "cuda", -1 for any other name.
int64_t cuda_index(const std::string& name) {
  const std::string prefix = "cuda:";
  if (name == "cuda") {
    return 0;
  }
  const auto digits =
      name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : std::string();
  // Nine digits fit into an int64_t, and no machine has that many devices.
  const bool is_number = !digits.empty() && digits.size() <= 9 &&
      std::all_of(digits.begin(), digits.end(), [](char c) {
        return c >= '0' && c <= '9';
      });
  return is_number ? std::stol(digits) : -1;
}

std::string existing_devices(int64_t cuda_devices) {
  std::string devices = "cpu";
  for (int64_t i = 0; i < cuda_devices; ++i) {
    devices += ", cuda:" + std::to_string(i);
  }
  return devices;
}

} // namespace

c10::Device select_device(const std::string& name) {
  const int64_t cuda_devices = torch::cuda::device_count();
  if (name == "cpu" || (name == "auto" && cuda_devices == 0)) {
    return c10::kCPU;
  }
  if (name == "auto") {
    return c10::kCUDA;
  }
  const auto index = cuda_index(name);
  TORCH_ATTENTION_CHECK(
      index >= 0,
      "select_device: expected \"auto\", \"cpu\", \"cuda\" or "
      "\"cuda:N\", but got \"{}\"",
      name);
  TORCH_ATTENTION_CHECK(
      index < cuda_devices,
      "select_device: asked for \"{}\", but the devices of this machine "
      "are: {}",
      name,
      existing_devices(cuda_devices));
  return name == "cuda"
      ? c10::Device(c10::kCUDA)
      : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

std::string cpu_instruction_set() {
  using cpu::InstructionSet;
  switch (cpu::instruction_set()) {
    case InstructionSet::kPortable:
      return "portable";
    case InstructionSet::kAvx2:
      return "AVX2";
    case InstructionSet::kAvx512:
      return "AVX-512";
    case InstructionSet::kAvx512Bf16:
      return "AVX-512 BF16";
    case InstructionSet::kAmxBf16:
      return "AMX BF16";
    case InstructionSet::kNeon:
      return "NEON";
    case InstructionSet::kNeonBf16:
      break;
  }
  return "NEON BF16";
}

} // namespace torch_attention
