#include <weights/pretrained/head_verbs.h>

#include <weights/pretrained/describe.h>
#include <weights/pretrained/verb_arguments.h>

#include <cstddef>
#include <optional>
#include <string>

namespace torch_attention::weights::pretrained {

namespace {

/// Returns the norm that the arguments describe; none if its flag is not set.
std::optional<HeadNormOptions> norm_of(
    Layer& layer,
    const Arguments& arguments) {
  HeadNormOptions norm;
  std::string eps_field;
  for (const auto& argument : arguments) {
    if (const auto flag = text_after(argument, "if ")) {
      if (!layer.config.flag(*flag).value_or(false)) {
        return std::nullopt;
      }
    } else if (const auto field = text_after(argument, "eps in ")) {
      eps_field = *field;
    } else if (const auto eps = number_after(argument, "eps ")) {
      norm.eps(*eps);
    } else if (argument == "layer") {
      norm.kind(HeadNormKind::kLayer);
    } else if (argument == "all heads") {
      norm.scope(HeadNormScope::kAllHeads);
    } else if (argument == "head weights") {
      norm.scope(HeadNormScope::kHeadWeights);
    } else if (argument == "unit offset") {
      norm.unit_offset(true);
    } else if (argument == "bias") {
      norm.bias(true);
    } else if (argument == "no weight") {
      norm.weight(false);
    } else if (argument == "after rotary") {
      norm.after_rotary(true);
    } else if (argument != "rms") {
      throw_unknown("norms", argument);
    }
  }
  if (!eps_field.empty()) {
    norm.eps(layer.config.number(eps_field).value_or(1e-6));
  }
  return norm;
}

} // namespace

void run_norms(Layer& layer, const Arguments& arguments) {
  if (const auto norm = norm_of(layer, arguments)) {
    layer.options.qk_norm(norm);
  }
}

void run_out_norm(Layer& layer, const Arguments& arguments) {
  const auto& name = arguments.front();
  layer.options.out_norm(
      norm_of(layer, Arguments(arguments.begin() + 1, arguments.end())));
  for (const std::string part : {".weight", ".bias"}) {
    layer.layout.rename(name + part, "out_norm" + part);
  }
}

void run_gate(Layer& layer, const Arguments& arguments) {
  OutputGateOptions gate;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (const auto flag = text_after(arguments[i], "if ")) {
      if (!layer.config.flag(*flag).value_or(false)) {
        return;
      }
    } else if (arguments[i] == "of heads") {
      gate.scope(GateScope::kHead);
    } else if (arguments[i] == "softplus") {
      gate.function(GateFunction::kSoftplus);
    } else {
      throw_unknown("gate", arguments[i]);
    }
  }
  layer.options.output_gate(gate.bias(false));
  layer.layout.rename(arguments.front() + ".weight", "W_gate.weight");
}

void run_value_scale(Layer& layer, const Arguments& arguments) {
  layer.options.value_scale(layer.config.number(arguments.front()).value_or(1));
}

void run_query_scale(Layer& layer, const Arguments& arguments) {
  layer.options.query_scale(true);
  layer.layout.rename(arguments.front(), "query_scale");
}

} // namespace torch_attention::weights::pretrained
