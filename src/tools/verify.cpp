#include <tools/verify.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <torch_attention/device.h>
#include <torch_attention/weights/load.h>

#include <algorithm>
#include <array>
#include <filesystem>
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

StateDict run_ours(
    const VerificationCase& c,
    torch::Device device,
    Kernel kernel) {
  auto module = make_module(c.config, kernel);
  module.ptr()->to(device, c.run.input.scalar_type());
  // An unmasked module may come from a class that registers no mask.
  load_weights(
      *module.ptr(),
      c.archive,
      LoadOptions().prefix(c.prefix).mask(
          c.config.causal ? MaskPolicy::kEqual : MaskPolicy::kOptional));
  return run(std::move(module), c.run);
}

/// The size of the numbers of which a tensor is a sum. A bias has the gradient
/// of its weight's rows summed over tokens, and that of the key bias cancels:
/// in exact arithmetic it is zero, so its own size says nothing.
double scale_of(const StateDict& expected, const std::string& name) {
  const auto largest = largest_of(expected[name]);
  const std::string bias = ".bias";
  if (!ends_with(name, bias)) {
    return largest;
  }
  const auto weight = name.substr(0, name.size() - bias.size()) + ".weight";
  const auto* found = expected.find(weight);
  return found == nullptr ? largest : std::max(largest, largest_of(*found));
}

/// What a tensor may differ by. A gradient that differs within its tolerance
/// moves a step of AdamW by at most lr / eps times that.
double allowed_of(
    const VerificationCase& verification_case,
    const std::string& name) {
  const auto& expected = verification_case.expected;
  const auto tolerance = tolerance_of(expected[name].scalar_type());
  const auto allowed = tolerance.allowed(scale_of(expected, name));
  const auto parameter = parameter_of_trained(name);
  if (parameter.empty()) {
    return allowed;
  }
  const auto& adamw = verification_case.run.adamw;
  return allowed +
      static_cast<double>(adamw.steps) * adamw.lr / adamw.eps *
      tolerance.allowed(scale_of(expected, gradient_name(parameter)));
}

void compare_all(
    Verdict& verdict,
    const StateDict& actual,
    const VerificationCase& verification_case) {
  double worst = -1;
  for (const auto& item : verification_case.expected) {
    const auto* found = actual.find(item.key());
    const auto difference = compare(
        found != nullptr ? *found : torch::Tensor(),
        item.value(),
        scale_of(verification_case.expected, item.key()),
        allowed_of(verification_case, item.key()));
    // Written so that NaN counts as worst.
    if (!(difference.of_allowed <= worst)) {
      worst = difference.of_allowed;
      verdict.worst = item.key();
      verdict.difference = difference;
      verdict.tolerance = tolerance_of(item.value().scalar_type());
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
        "{:<{}}  {:<7}  {:<9}  {:>8}  {:>8}  {:<15}  {:<7}  {}\n",
        "case",
        width_,
        "device",
        "kernel",
        "max abs",
        "max rel",
        "rtol / atol",
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
        "{}{:>8.1e}  {:>8.1e}  {:.1e} / {:.0e}  {:<7}  {}\n",
        start,
        verdict.difference.absolute,
        verdict.difference.relative,
        verdict.tolerance.rtol,
        verdict.tolerance.atol,
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
            "recorded, the weights\nafter 3 steps of AdamW; a line shows the "
            "tensor that is nearest to its tolerance, with\nits largest "
            "difference, absolute and relative to max|expected|. Allowed: "
            "atol + rtol *\nmax|expected|, and after AdamW what such a "
            "difference of the gradient makes of it.\n";
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
        run_ours(verification_case, device, kernel),
        verification_case);
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
