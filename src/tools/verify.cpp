#include <tools/verify.h>

#include <tools/allowance.h>
#include <tools/suggestion.h>

#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include <error_message.h>
#include <torch_attention/device.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <ostream>
#include <utility>

namespace torch_attention::tools {

namespace {

namespace fs = std::filesystem;

constexpr std::array<Kernel, 3> kKernels = {
    Kernel::kReference,
    Kernel::kFused,
    Kernel::kAuto};

/// Returns the archives of `path`: itself, or those in the folder, sorted.
std::vector<std::string> archives_of(const std::string& path) {
  if (!fs::is_directory(path)) {
    return {path};
  }
  std::vector<std::string> archives;
  for (const auto& entry : fs::directory_iterator(path)) {
    const auto extension = entry.path().extension();
    const bool is_recorded =
        extension == ".pt" && entry.path().stem().extension() == ".expected";
    if ((extension == ".pt" || extension == ".safetensors") && !is_recorded) {
      archives.push_back(entry.path().string());
    }
  }
  TORCH_CHECK(
      !archives.empty(),
      "the folder \"",
      path,
      "\" has no files *.pt or *.safetensors");
  std::sort(archives.begin(), archives.end());
  return archives;
}

std::string case_name(const std::string& archive) {
  return fs::path(archive).stem().string();
}

std::vector<torch::Device> devices_of(const std::string& name) {
  if (!name.empty()) {
    return {select_device(name)};
  }
  std::vector<torch::Device> devices = {torch::kCPU};
  const auto count = static_cast<c10::DeviceIndex>(torch::cuda::device_count());
  for (c10::DeviceIndex i = 0; i < count; ++i) {
    devices.emplace_back(torch::kCUDA, i);
  }
  return devices;
}

void compare_all(
    Verdict& verdict,
    const StateDict& actual,
    const StateDict& expected,
    const Allowance& allowance) {
  double worst = -1;
  for (const auto& item : expected) {
    const auto& name = item.key();
    const auto* found = actual.find(name);
    const auto difference = compare(
        found != nullptr ? *found : torch::Tensor(),
        item.value(),
        allowance.scale(name),
        allowance.allowed(name));
    if (difference.of_allowed > worst) {
      worst = difference.of_allowed;
      verdict.worst = name;
      verdict.difference = difference;
      verdict.allowed = allowance.allowed(name);
    }
  }
}

void verify_archive(
    VerdictTable& table,
    const std::string& archive,
    const std::vector<torch::Device>& devices,
    const ArchiveOptions& options) {
  try {
    auto verification_case = make_case(archive, options);
    const auto heads = find_num_heads(verification_case);
    bool passed = true;
    for (const auto& device : devices) {
      for (const auto kernel : kKernels) {
        if (is_comparable(verification_case, device, kernel)) {
          const auto verdict = verify(verification_case, device, kernel);
          passed = passed && verdict.passed();
          table.add(verdict);
        } else {
          table.add_incomparable(has_other_random_stream(verification_case));
        }
      }
    }
    table.add_remark(heads);
    if (!passed) {
      table.add_remark(suggest_options(verification_case));
    }
  } catch (const std::exception& error) {
    Verdict verdict;
    verdict.case_name = case_name(archive);
    verdict.error = error_message(error);
    table.add(verdict);
  }
}

} // namespace

bool is_comparable(
    const VerificationCase& verification_case,
    torch::Device device,
    Kernel kernel) {
  return !verification_case.has_dropout() ||
      (device.is_cpu() && kernel == Kernel::kReference &&
       !has_other_random_stream(verification_case));
}

Verdict verify(
    const VerificationCase& verification_case,
    torch::Device device,
    Kernel kernel) {
  Verdict verdict;
  verdict.case_name = verification_case.name;
  verdict.device = device;
  verdict.kernel = kernel;
  try {
    const Allowance allowance(verification_case, device, kernel);
    allowance.check_rounding();
    compare_all(
        verdict,
        run_ours(verification_case, verification_case.run, device, kernel),
        verification_case.expected,
        allowance);
  } catch (const std::exception& error) {
    verdict.error = error_message(error);
  }
  return verdict;
}

bool verify_files(
    const std::vector<std::string>& paths,
    const std::string& device,
    const ArchiveOptions& options,
    std::ostream& out) {
  const auto devices = devices_of(device);
  std::vector<std::string> archives;
  for (const auto& path : paths) {
    const auto found = archives_of(path);
    archives.insert(archives.end(), found.begin(), found.end());
  }
  size_t width = 0;
  for (const auto& archive : archives) {
    width = std::max(width, case_name(archive).size());
  }
  VerdictTable table(out, width);
  for (const auto& archive : archives) {
    verify_archive(table, archive, devices, options);
  }
  return table.finish(archives.size());
}

} // namespace torch_attention::tools
