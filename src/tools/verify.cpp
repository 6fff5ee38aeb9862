#include <tools/verify.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <torch_attention/device.h>
#include <torch_attention/weights/load.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <ostream>
#include <sstream>
#include <utility>

namespace torch_attention::tools {

namespace {

namespace fs = std::filesystem;

constexpr std::array<Kernel, 3> kKernels = {
    Kernel::kReference,
    Kernel::kFused,
    Kernel::kAuto};

bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() &&
      text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

template <typename T>
std::string text_of(const T& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

/// The archives of `path`: itself, or those in the folder, by name.
std::vector<std::string> archives_of(const std::string& path) {
  if (!fs::is_directory(path)) {
    return {path};
  }
  std::vector<std::string> archives;
  for (const auto& entry : fs::directory_iterator(path)) {
    const auto name = entry.path().string();
    if (ends_with(name, ".pt") && !ends_with(name, ".expected.pt")) {
      archives.push_back(name);
    }
  }
  TORCH_CHECK(
      !archives.empty(), "the folder \"", path, "\" has no archives *.pt");
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
  for (c10::DeviceIndex i = 0; i < torch::cuda::device_count(); ++i) {
    devices.emplace_back(torch::kCUDA, i);
  }
  return devices;
}

/// Runs our module with the archive's weights, all in the dtype of the input.
StateDict run_ours(
    const VerificationCase& verification_case,
    const TrainingRun& training_run,
    torch::Device device,
    Kernel kernel) {
  const auto& config = verification_case.config;
  auto module = make_module(config, kernel);
  module.ptr()->to(device, training_run.input.scalar_type());
  // An unmasked module may come from a class that registers no mask.
  load_weights(
      *module.ptr(),
      verification_case.archive,
      LoadOptions()
          .prefix(verification_case.prefix)
          .mask(config.causal ? MaskPolicy::kEqual : MaskPolicy::kOptional));
  return run(std::move(module), training_run);
}

/// What a result may differ by from the expected one.
class Allowance {
 public:
  Allowance(
      const VerificationCase& verification_case,
      torch::Device device,
      Kernel kernel)
      : case_(verification_case),
        same_operations_(device.is_cpu() && kernel == Kernel::kReference) {
    if (!same_operations_ && !case_.has_dropout()) {
      measure_noise();
    }
  }

  Tolerance tolerance(const std::string& name) const {
    return tolerance_of(case_.expected[name].scalar_type(), same_operations_);
  }

  /// The size of the numbers of which a tensor is a sum. The gradient of the
  /// key bias cancels, in exact arithmetic to zero: its own size says nothing.
  double scale(const std::string& name) const {
    const auto largest = largest_of(case_.expected[name]);
    const std::string bias = ".bias";
    if (!ends_with(name, bias)) {
      return largest;
    }
    const auto* weight = case_.expected.find(
        name.substr(0, name.size() - bias.size()) + ".weight");
    return weight == nullptr ? largest : std::max(largest, largest_of(*weight));
  }

  double allowed(const std::string& name) const {
    const auto noise = noise_.find(kind(name));
    const auto of_noise =
        noise == noise_.end() ? 0.0 : 3 * noise->second * scale(name);
    const auto allowed = tolerance(name).allowed(scale(name)) + of_noise;
    const auto parameter = parameter_of_trained(name);
    if (parameter.empty()) {
      return allowed;
    }
    // A gradient that differs within its tolerance moves a step of AdamW by at
    // most lr / eps times that.
    const auto gradient = gradient_name(parameter);
    const auto& adamw = case_.run.adamw;
    return allowed +
        static_cast<double>(adamw.steps) * adamw.lr / adamw.eps *
        tolerance(gradient).allowed(scale(gradient));
  }

 private:
  /// The first word of a name: output, gradient or trained.
  static std::string kind(const std::string& name) {
    return name.substr(0, name.find(' '));
  }

  /// How far Python's rounding takes it from the result in double, relative to
  /// the scale: another order of operations may be as far on the other side.
  void measure_noise() {
    auto in_double = case_.run;
    in_double.input = in_double.input.to(torch::kDouble);
    in_double.cotangent = in_double.cotangent.to(torch::kDouble);
    const auto exact =
        run_ours(case_, in_double, torch::kCPU, Kernel::kReference);
    for (const auto& item : case_.expected) {
      const auto* found = exact.find(item.key());
      if (found == nullptr || found->sizes() != item.value().sizes()) {
        continue;
      }
      const auto difference =
          compare(item.value(), *found, scale(item.key()), 1.0);
      auto& noise = noise_[kind(item.key())];
      // NaN and infinity in what is expected must not allow everything.
      if (std::isfinite(difference.relative)) {
        noise = std::max(noise, difference.relative);
      }
    }
  }

  const VerificationCase& case_;
  bool same_operations_;
  std::map<std::string, double> noise_;
};

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

/// Prints verdicts as they come, and counts them.
class Table {
 public:
  Table(std::ostream& out, const std::vector<std::string>& archives)
      : out_(out), cases_(archives.size()) {
    for (const auto& archive : archives) {
      width_ = std::max(width_, case_name(archive).size());
    }
    out_ << fmt::format(
        "{:<{}}  {:<7}  {:<9}  {:>8}  {:>8}  {:>8}  {:<7}  {}\n",
        "case",
        width_,
        "device",
        "kernel",
        "max abs",
        "max rel",
        "allowed",
        "verdict",
        "nearest to its tolerance");
  }

  void add(const Verdict& verdict) {
    ++lines_;
    failed_ += verdict.passed() ? 0 : 1;
    const auto start = fmt::format(
        "{:<{}}  {:<7}  {:<9}  ",
        verdict.case_name,
        width_,
        text_of(verdict.device),
        text_of(verdict.kernel));
    if (!verdict.error.empty()) {
      out_ << fmt::format("{}FAILED: {}\n", start, verdict.error);
      return;
    }
    out_ << fmt::format(
        "{}{:>8.1e}  {:>8.1e}  {:>8.1e}  {:<7}  {}\n",
        start,
        verdict.difference.absolute,
        verdict.difference.relative,
        verdict.allowed,
        verdict.passed() ? "ok" : "FAILED",
        verdict.worst);
    out_ << std::flush;
  }

  void add_incomparable() {
    ++incomparable_;
  }

  /// Prints the sums; returns whether all passed.
  bool finish() {
    out_ << "\nCompared: outputs, gradients of input and weights and, where "
            "recorded, the weights\nafter 3 steps of AdamW. A line shows the "
            "tensor that is nearest to what it may\ndiffer by (max abs <= "
            "allowed); max rel is relative to max|expected|.\nAllowed: atol + "
            "rtol * max|expected| (float32: 1e-6 for the reference kernel on "
            "the CPU,\nelse 1e-5 and 1.3e-6; float64: 1e-7; bfloat16: 1e-3 and "
            "1.6e-2), and for other\nkernels 3 times what Python's own "
            "rounding differs by from the result in float64.\n";
    if (incomparable_ > 0) {
      out_ << fmt::format(
          "Left out: {} runs under dropout. Only the reference kernel on the "
          "CPU draws Python's\nrandom stream.\n",
          incomparable_);
    }
    out_ << fmt::format(
        "{} cases, {} runs: {} ok, {} failed.\n",
        cases_,
        lines_,
        lines_ - failed_,
        failed_);
    return failed_ == 0;
  }

 private:
  std::ostream& out_;
  size_t cases_;
  size_t width_ = 4;
  size_t lines_ = 0;
  size_t failed_ = 0;
  size_t incomparable_ = 0;
};

void verify_archive(
    Table& table,
    const std::string& archive,
    const std::vector<torch::Device>& devices,
    const ArchiveOptions& options) {
  try {
    const auto verification_case = make_case(archive, options);
    for (const auto& device : devices) {
      for (const auto kernel : kKernels) {
        if (is_comparable(verification_case, device, kernel)) {
          table.add(verify(verification_case, device, kernel));
        } else {
          table.add_incomparable();
        }
      }
    }
  } catch (const std::exception& error) {
    Verdict verdict;
    verdict.case_name = case_name(archive);
    verdict.error = message_of(error);
    table.add(verdict);
  }
}

} // namespace

bool is_comparable(
    const VerificationCase& verification_case,
    torch::Device device,
    Kernel kernel) {
  const bool has_dropout =
      verification_case.run.training && verification_case.config.dropout > 0;
  return !has_dropout || (device.is_cpu() && kernel != Kernel::kFused);
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
    compare_all(
        verdict,
        run_ours(verification_case, verification_case.run, device, kernel),
        verification_case.expected,
        Allowance(verification_case, device, kernel));
  } catch (const std::exception& error) {
    verdict.error = message_of(error);
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
  Table table(out, archives);
  for (const auto& archive : archives) {
    verify_archive(table, archive, devices, options);
  }
  return table.finish();
}

} // namespace torch_attention::tools
