#include <tools/swap_model.h>

#include <atomic_file.h>
#include <tools/load_script.h>
#include <tools/measure.h>
#include <torch_attention/jit/swap_attention.h>
#include <torch_attention/weights/read.h>

#include <escape.h>

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/script.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <vector>

namespace torch_attention::tools {

namespace {

using ModelInputs = std::vector<c10::IValue>;
using FloatTensors = std::vector<torch::Tensor>;

/// The largest allowed differences, relative to the largest number or 1.
constexpr double kOutputTolerance = 1e-5;
constexpr double kGradientTolerance = 1e-4;

ModelInputs read_inputs(const std::string& path) {
  ModelInputs inputs;
  for (const auto& item : read_weights(path)) {
    inputs.emplace_back(item.value());
  }
  return inputs;
}

void collect_floats(const c10::IValue& value, FloatTensors& tensors) {
  if (value.isTensor()) {
    if (value.toTensor().is_floating_point()) {
      tensors.push_back(value.toTensor());
    }
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) {
      collect_floats(element, tensors);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toList()) {
      collect_floats(element, tensors);
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      collect_floats(entry.value(), tensors);
    }
  }
}

/// Returns the floating-point tensors among a model's outputs.
FloatTensors outputs_of(torch::jit::Module& model, const ModelInputs& inputs) {
  FloatTensors outputs;
  collect_floats(model.forward(inputs), outputs);
  return outputs;
}

/// Returns the gradients of the parameters, with the sum of the outputs' sines
/// as the loss; none if the model has no gradients.
FloatTensors gradients_of(
    torch::jit::Module& model,
    const ModelInputs& inputs) {
  FloatTensors parameters;
  for (const auto parameter : model.parameters()) {
    if (parameter.requires_grad()) {
      parameters.push_back(parameter);
    }
  }
  FloatTensors sums;
  for (const auto& output : outputs_of(model, inputs)) {
    if (output.requires_grad()) {
      sums.push_back(output.sin().sum());
    }
  }
  if (parameters.empty() || sums.empty()) {
    return {};
  }
  auto gradients = torch::autograd::grad(
      sums, parameters, {}, std::nullopt, false, /*allow_unused=*/true);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) {
      gradients[i] = torch::zeros_like(parameters[i]);
    }
  }
  return gradients;
}

/// Returns the largest difference, relative to the largest number or 1.
double difference_of(const FloatTensors& a, const FloatTensors& b) {
  if (a.size() != b.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].sizes() != b[i].sizes()) {
      return std::numeric_limits<double>::infinity();
    }
    if (a[i].numel() == 0) {
      continue;
    }
    const auto scale = std::max(1.0, b[i].abs().max().item<double>());
    const auto worst = (a[i] - b[i]).abs().max().item<double>() / scale;
    if (std::isnan(worst)) {
      return std::numeric_limits<double>::infinity();
    }
    largest = std::max(largest, worst);
  }
  return largest;
}

/// Measures forward passes of both models, interleaved, and prints their times.
void measure_models(
    torch::jit::Module& before,
    torch::jit::Module& after,
    const ModelInputs& inputs,
    std::ostream& out) {
  const torch::NoGradGuard no_grad;
  const auto seconds = interleave(
      {[&] { before.forward(inputs); }, [&] { after.forward(inputs); }}, {});
  constexpr double kMilliseconds = 1e3;
  out << fmt::format(
      "a forward pass took {:.3g} ms and takes {:.3g} ms: {:.2f} times as "
      "fast\n",
      spread_of(seconds[0]).median * kMilliseconds,
      spread_of(seconds[1]).median * kMilliseconds,
      ratio_of(seconds[0], seconds[1]).median);
}

/// Compares outputs and gradients of both models. Returns whether they agree.
bool agree(
    torch::jit::Module& before,
    torch::jit::Module& after,
    const ModelInputs& inputs,
    std::ostream& out) {
  const auto expected = outputs_of(before, inputs);
  if (difference_of(outputs_of(before, inputs), expected) > 0) {
    out << "not compared: the model's outputs differ from call to call\n";
    return true;
  }
  const auto of_outputs = difference_of(outputs_of(after, inputs), expected);
  double of_gradients = 0;
  out << fmt::format("outputs differ by {:.1e}", of_outputs);
  FloatTensors gradients;
  const auto say_none = [&] { out << "; the model has no gradients"; };
  // Layers that were traced without gradients have none. LibTorch throws one of
  // these errors then, up to 2.9 the second.
  try {
    gradients = gradients_of(before, inputs);
  } catch (const c10::Error&) {
    say_none();
  } catch (const std::runtime_error&) {
    say_none();
  }
  if (!gradients.empty()) {
    of_gradients = difference_of(gradients_of(after, inputs), gradients);
    out << fmt::format(", gradients by {:.1e}", of_gradients);
  }
  out << "\n";
  return of_outputs <= kOutputTolerance && of_gradients <= kGradientTolerance;
}

/// Writes a model. If it throws, the old file has not changed.
void save_model(const torch::jit::Module& model, const std::string& path) {
  AtomicFile file(path);
  // LibTorch's writer ends the program if its callback fails.
  std::exception_ptr failure;
  torch::jit::ExportModule(model, [&](const void* data, size_t size) {
    try {
      if (!failure) {
        file.write(data, size);
      }
    } catch (...) {
      failure = std::current_exception();
    }
    return size;
  });
  if (failure) {
    std::rethrow_exception(failure);
  }
  file.commit();
}

} // namespace

bool swap_model(
    const std::string& input,
    const std::string& output,
    const std::string& check,
    std::ostream& out) {
  auto after = load_script(input, std::nullopt);
  const auto report = swap_attention(after);
  out << report;
  if (report.swapped.empty()) {
    return false;
  }
  if (!check.empty()) {
    const auto inputs = read_inputs(check);
    auto before = load_script(input, std::nullopt);
    if (!agree(before, after, inputs, out)) {
      out << "not written: they differ\n";
      return false;
    }
    measure_models(before, after, inputs, out);
  }
  save_model(after, output);
  out << "wrote " << escaped(output)
      << "; it needs libtorch_attention where it is "
      << "loaded\n";
  return true;
}

} // namespace torch_attention::tools
