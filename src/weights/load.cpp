#include <torch_attention/weights/load.h>

#include <weights/read.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ostream>
#include <utility>

namespace torch_attention {

namespace {

/// "MultiHeadAttention" for "torch_attention::MultiHeadAttentionImpl".
std::string class_name(const torch::nn::Module& module) {
  auto name = module.name();
  const auto colon = name.rfind(':');
  if (colon != std::string::npos) {
    name.erase(0, colon + 1);
  }
  const std::string suffix = "Impl";
  if (name.size() > suffix.size() &&
      name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0) {
    name.resize(name.size() - suffix.size());
  }
  return name;
}

/// The parameters and buffers of `module`; they share its memory.
StateDict state_dict(const torch::nn::Module& module) {
  StateDict result;
  for (const auto& parameter : module.named_parameters()) {
    result.insert(parameter.key(), parameter.value());
  }
  for (const auto& buffer : module.named_buffers()) {
    result.insert(buffer.key(), buffer.value());
  }
  return result;
}

/// The tensors below `prefix`, their names without it.
StateDict below_prefix(StateDict tensors, const std::string& prefix) {
  if (prefix.empty()) {
    return tensors;
  }
  const auto start = prefix.back() == '.' ? prefix : prefix + ".";
  StateDict result;
  for (const auto& item : tensors) {
    if (item.key().compare(0, start.size(), start) == 0) {
      result.insert(item.key().substr(start.size()), item.value());
    }
  }
  TORCH_CHECK(
      !result.is_empty(),
      fmt::format(
          "no key begins with the prefix \"{}\"; the file's keys: \"{}\"",
          start,
          fmt::join(tensors.keys(), "\", \"")));
  return result;
}

bool is_mask_key(const std::string& key) {
  const std::string leaf = "mask";
  return key == leaf ||
      (key.size() > leaf.size() &&
       key.compare(
           key.size() - leaf.size() - 1, std::string::npos, "." + leaf) == 0);
}

/// Whether `tensor` is the mask that Python's attention classes register.
bool is_causal_mask(const torch::Tensor& tensor) {
  if (tensor.dim() != 2 || tensor.size(0) != tensor.size(1)) {
    return false;
  }
  return tensor.equal(torch::ones_like(tensor).triu(1));
}

/// The names of the causal masks among the buffers of `module`.
std::vector<std::string> causal_masks(const torch::nn::Module& module) {
  std::vector<std::string> keys;
  for (const auto& buffer : module.named_buffers()) {
    if (is_mask_key(buffer.key()) && is_causal_mask(buffer.value())) {
      keys.push_back(buffer.key());
    }
  }
  return keys;
}

bool contains(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

/// A tensor of the module and what it shall become.
struct Assignment {
  torch::Tensor target;
  torch::Tensor source;
};

/// What is to be done, and everything that is wrong.
struct Plan {
  std::vector<Assignment> assignments;
  LoadReport report;
  std::vector<std::string> mismatches;
};

std::string shape_text(const torch::Tensor& tensor) {
  return fmt::format("torch.Size([{}])", fmt::join(tensor.sizes(), ", "));
}

void plan_tensor(
    Plan& plan,
    const std::string& key,
    const torch::Tensor& source,
    const torch::Tensor& target,
    bool is_mask) {
  if (source.sizes() != target.sizes()) {
    plan.mismatches.push_back(fmt::format(
        "size mismatch for {}: copying a param with shape {} from checkpoint, "
        "the shape in current model is {}.",
        key,
        shape_text(source),
        shape_text(target)));
    return;
  }
  if (source.is_complex() && !target.is_complex()) {
    plan.mismatches.push_back(fmt::format(
        "dtype mismatch for {}: copying complex numbers ({}) into real ones "
        "({}) would lose their imaginary part.",
        key,
        torch::toString(source.scalar_type()),
        torch::toString(target.scalar_type())));
    return;
  }
  if (is_mask && !is_causal_mask(source.to(torch::kFloat))) {
    plan.mismatches.push_back(fmt::format(
        "value mismatch for {}: the file's mask is not the causal mask, which "
        "the module applies. MaskPolicy::kIgnore does not read it.",
        key));
    return;
  }
  plan.assignments.push_back({target, source});
  plan.report.loaded.push_back(
      {key, source.sizes().vec(), source.scalar_type(), target.scalar_type()});
}

Plan make_plan(
    const torch::nn::Module& module,
    const StateDict& file,
    const LoadOptions& options) {
  Plan plan;
  const auto targets = state_dict(module);
  const auto masks = causal_masks(module);
  for (const auto& item : targets) {
    const bool is_mask = contains(masks, item.key());
    if (is_mask && options.mask() == MaskPolicy::kIgnore) {
      continue;
    }
    if (const auto* source = file.find(item.key())) {
      plan_tensor(plan, item.key(), *source, item.value(), is_mask);
    } else if (!is_mask || options.mask() == MaskPolicy::kEqual) {
      plan.report.missing.push_back(item.key());
    }
  }
  for (const auto& item : file) {
    if (!targets.contains(item.key())) {
      plan.report.unexpected.push_back(item.key());
    }
  }
  return plan;
}

/// Throws everything that is wrong with the plan, in the words of Python's
/// `load_state_dict`.
void check_plan(
    const Plan& plan,
    const std::string& module_name,
    const LoadOptions& options) {
  std::vector<std::string> problems;
  const auto add_keys = [&](const char* what,
                            const std::vector<std::string>& keys) {
    if (options.strict() && !keys.empty()) {
      problems.push_back(fmt::format(
          "{} key(s) in state_dict: \"{}\".", what, fmt::join(keys, "\", \"")));
    }
  };
  add_keys("Missing", plan.report.missing);
  add_keys("Unexpected", plan.report.unexpected);
  problems.insert(
      problems.end(), plan.mismatches.begin(), plan.mismatches.end());
  TORCH_CHECK(
      problems.empty(),
      fmt::format(
          "Error(s) in loading state_dict for {}:\n\t{}",
          module_name,
          fmt::join(problems, "\n\t")));
}

/// Copies all or, if one cannot be brought to its dtype and device, none.
void copy_all(const std::vector<Assignment>& assignments) {
  torch::NoGradGuard no_grad;
  // What can fail, comes before the first change.
  std::vector<torch::Tensor> sources;
  for (const auto& [target, source] : assignments) {
    sources.push_back(source.to(target.device(), target.scalar_type()));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    assignments[i].target.copy_(sources[i]);
  }
}

} // namespace

LoadReport load_weights(
    torch::nn::Module& module,
    const std::string& path,
    const LoadOptions& options) {
  try {
    auto file = read_weight_file(path);
    auto plan = make_plan(
        module,
        below_prefix(std::move(file.tensors), options.prefix()),
        options);
    check_plan(plan, class_name(module), options);
    copy_all(plan.assignments);
    plan.report.path = path;
    plan.report.format = std::move(file.format);
    return std::move(plan.report);
  } catch (const c10::Error& error) {
    TORCH_CHECK(
        false,
        "load_weights(\"",
        path,
        "\"): ",
        error.what_without_backtrace());
  }
}

std::ostream& operator<<(std::ostream& stream, const LoadReport& report) {
  size_t width = 3;
  for (const auto& tensor : report.loaded) {
    width = std::max(width, tensor.key.size());
  }
  fmt::memory_buffer out;
  auto line = std::back_inserter(out);
  fmt::format_to(
      line,
      "{} tensors from {} ({})\n",
      report.loaded.size(),
      report.path,
      report.format);
  for (const auto& tensor : report.loaded) {
    const auto* file_dtype = torch::toString(tensor.file_dtype);
    const auto* module_dtype = torch::toString(tensor.module_dtype);
    fmt::format_to(
        line,
        "  {:<{}}  {:<16}  {}\n",
        tensor.key,
        width,
        fmt::format("({})", fmt::join(tensor.shape, ", ")),
        tensor.file_dtype == tensor.module_dtype
            ? std::string(file_dtype)
            : fmt::format("{} -> {}", file_dtype, module_dtype));
  }
  for (const auto& key : report.missing) {
    fmt::format_to(line, "  {:<{}}  missing in the file, kept\n", key, width);
  }
  for (const auto& key : report.unexpected) {
    fmt::format_to(line, "  {:<{}}  only in the file, not used\n", key, width);
  }
  return stream << fmt::to_string(out);
}

} // namespace torch_attention
