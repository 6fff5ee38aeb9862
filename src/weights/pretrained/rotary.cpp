#include <weights/pretrained/rotary.h>

#include <check.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <vector>

namespace torch_attention::weights::pretrained {

namespace {

constexpr std::array kFields{
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rope_local_base_freq",
    "partial_rotary_factor",
    "original_max_position_embeddings"};

/// The parameters of a rotary embedding.
struct Parameters {
  const std::string& path;
  Json fields;
  /// False if they are for one type of layer.
  bool are_of_all = true;

  std::optional<double> number(const char* field) const {
    const auto& found = fields.get(field);
    if (found.is_null()) {
      return std::nullopt;
    }
    const auto number = found.as_number();
    TORCH_ATTENTION_CHECK(
        number.has_value(),
        "expected a number as \"{}\" of the rotary embedding in \"{}\"",
        field,
        path);
    return number;
  }

  double required(const char* field) const {
    const auto value = number(field);
    TORCH_ATTENTION_CHECK(
        value.has_value(),
        "expected \"{}\" of the rotary embedding in \"{}\", which has none",
        field,
        path);
    return *value;
  }

  /// Returns none if it is missing; null means false.
  std::optional<bool> flag(const char* field) const {
    const auto* found = fields.find(field);
    if (found == nullptr || found->is_null()) {
      return found == nullptr ? std::nullopt : std::optional(false);
    }
    const auto flag = found->as_flag();
    TORCH_ATTENTION_CHECK(
        flag.has_value(),
        "expected true or false as \"{}\" of the rotary embedding in "
        "\"{}\"",
        field,
        path);
    return flag;
  }

  std::vector<double> required_list(const char* field) const {
    const auto& found = fields.get(field);
    bool is_list = found.is_list();
    std::vector<double> numbers;
    for (const auto& element : found.elements()) {
      const auto number = element.as_number();
      is_list = is_list && number.has_value();
      numbers.push_back(number.value_or(0));
    }
    TORCH_ATTENTION_CHECK(
        is_list,
        "expected a list of numbers as \"{}\" of the rotary embedding in "
        "\"{}\"",
        field,
        path);
    return numbers;
  }

  std::string type() const {
    return rope_type_of(fields);
  }

  /// Throws c10::Error for a parameter that is not in `known`.
  void check_only(std::initializer_list<const char*> known) const {
    for (const auto& [field, value] : fields.fields()) {
      bool is_known = value.is_null() || field == "rope_type" ||
          field == "type" || field == "rope_theta" ||
          field == "partial_rotary_factor";
      for (const auto* each : known) {
        is_known = is_known || field == each;
      }
      TORCH_ATTENTION_CHECK(
          is_known,
          "\"{}\" of the rotary embedding of type \"{}\" in \"{}\" is not "
          "known",
          field,
          type(),
          path);
    }
  }
};

/// Replaces `truncate` by the one at the level of the layers' types, as
/// `transformers` does.
Json with_truncate_of(const Json& all, Json own) {
  own.erase("truncate");
  if (const auto* truncate = all.find("truncate")) {
    own.set("truncate", *truncate);
  }
  return own;
}

/// Returns the parameters of a type of layer, for `RotaryByType`.
Json parameters_by_type(
    ModelConfig& config,
    const std::string& layer_type,
    const RotaryRules& rules) {
  const auto& by_type = *rules.by_type;
  const bool slides = layer_type == "sliding_attention";
  const auto all = config.object("rope_parameters");
  const auto older = config.object("rope_scaling");
  TORCH_ATTENTION_CHECK(
      older.fields().empty() || all.fields().empty(),
      "expected rope_parameters or rope_scaling in \"{}\", but got both",
      config.path());
  const auto& of_type = all.get(layer_type);
  auto own = of_type;
  if (!own.is_object()) {
    own = Json::object();
    // It takes precedence over a `type` in `rope_scaling`.
    own.set("rope_type", Json(std::string("default")));
  }
  if (!slides || by_type.scales_sliding) {
    own.update(older);
  }
  const auto* field = slides ? by_type.local_theta_field : rules.theta_field;
  const auto otherwise = slides ? by_type.local_theta : rules.theta;
  for (const auto* each : {rules.theta_field, by_type.local_theta_field}) {
    if (each != nullptr) {
      config.ignore(each);
    }
  }
  if (!own.contains("rope_theta")) {
    const auto theta = field == nullptr ? std::nullopt : config.number(field);
    own.set("rope_theta", Json(theta.value_or(otherwise)));
  }
  return with_truncate_of(all, std::move(own));
}

/// Returns the parameters of a type of layer, for `needs_types`.
Json parameters_of_types(ModelConfig& config, const std::string& layer_type) {
  const auto all = config.object("rope_parameters");
  const auto& of_type = all.get(layer_type);
  TORCH_ATTENTION_CHECK(
      config.object("rope_scaling").fields().empty() && of_type.is_object() &&
          of_type.get("rope_theta").is_number(),
      "expected rope_theta for \"{}\" in the rope_parameters of \"{}\", and "
      "no rope_scaling",
      layer_type,
      config.path());
  return with_truncate_of(all, of_type);
}

/// Returns the parameters of a type of layer, with the fields of
/// `rope_parameters`.
Json parameters_of(
    ModelConfig& config,
    const std::string& layer_type,
    const RotaryRules& rules) {
  if (rules.needs_types) {
    return parameters_of_types(config, layer_type);
  }
  if (rules.by_type) {
    return parameters_by_type(config, layer_type, rules);
  }
  auto parameters = common_parameters(config);
  const auto theta = rules.theta_field == nullptr
      ? rules.theta
      : config.number(rules.theta_field).value_or(rules.theta);
  for (const auto* type : {"full_attention", "sliding_attention"}) {
    TORCH_ATTENTION_CHECK(
        !parameters.get(type).is_object(),
        "expected the same rotary embedding in all layers of \"{}\", but got "
        "one for \"{}\"",
        config.path(),
        type);
  }
  if (!parameters.contains("rope_theta")) {
    parameters.set("rope_theta", Json(theta));
  }
  return parameters;
}

int64_t original_length(ModelConfig& config, const Parameters& parameters) {
  // As in `transformers`, the field of the configuration takes precedence.
  const auto of_model = config.integer("original_max_position_embeddings");
  if (of_model && parameters.are_of_all) {
    return *of_model;
  }
  const auto of_scaling = parameters.number("original_max_position_embeddings");
  return of_scaling ? static_cast<int64_t>(*of_scaling)
                    : config.required_integer("max_position_embeddings");
}

/// Returns the factor by which the context is longer than the original one.
double factor_of(
    ModelConfig& config,
    const Parameters& parameters,
    int64_t original) {
  const auto most = config.required_integer("max_position_embeddings");
  return parameters.number("factor").value_or(
      static_cast<double>(most) / static_cast<double>(original));
}

void set_yarn(
    ModelConfig& config,
    const Parameters& parameters,
    RotaryOptions& options) {
  parameters.check_only(
      {"factor",
       "original_max_position_embeddings",
       "attention_factor",
       "beta_fast",
       "beta_slow",
       "finetuned",
       "mscale",
       "mscale_all_dim",
       "truncate"});
  const auto length = original_length(config, parameters);
  const auto factor = factor_of(config, parameters, length);
  options.scaling(RotaryScaling::kYarn)
      .factor(factor)
      .original_context_length(length)
      .fast_turns(parameters.number("beta_fast").value_or(32))
      .slow_turns(parameters.number("beta_slow").value_or(1))
      .truncate(parameters.flag("truncate").value_or(true))
      .attention_factor(parameters.number("attention_factor"));
  const auto mscale = parameters.number("mscale").value_or(0);
  const auto mscale_all_dim = parameters.number("mscale_all_dim").value_or(0);
  if (!options.attention_factor() && mscale != 0 && mscale_all_dim != 0) {
    options.attention_factor(
        yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all_dim));
  }
}

void set_longrope(
    ModelConfig& config,
    const Parameters& parameters,
    RotaryOptions& options) {
  parameters.check_only(
      {"factor",
       "original_max_position_embeddings",
       "attention_factor",
       "short_factor",
       "long_factor"});
  const auto length = original_length(config, parameters);
  options.scaling(RotaryScaling::kLongRope)
      .factor(factor_of(config, parameters, length))
      .original_context_length(length)
      .short_factors(parameters.required_list("short_factor"))
      .long_factors(parameters.required_list("long_factor"))
      .attention_factor(parameters.number("attention_factor"));
}

/// Rotates the first pairs of the head, with the frequencies of a completely
/// rotated head.
void set_proportional(
    const Parameters& parameters,
    double share,
    int64_t head_dim,
    RotaryOptions& options) {
  parameters.check_only({"factor"});
  const auto factor = parameters.number("factor").value_or(1);
  const auto turning = static_cast<size_t>(
      static_cast<double>(head_dim) * std::clamp(share, 0.0, 1.0) / 2);
  std::vector<double> factors(static_cast<size_t>(head_dim / 2), kStillFactor);
  std::fill_n(factors.begin(), turning, factor);
  set_frequency_factors(factors, options);
}

/// Sets the number of rotated elements. `transformers` rounds an odd number up,
/// but keeps its frequencies, which corresponds to another theta.
void set_dim(double dim, RotaryOptions& options) {
  const auto floor = static_cast<int64_t>(dim);
  options.dim(floor);
  const bool goes_by_dim = options.scaling() != RotaryScaling::kLinear &&
      options.scaling() != RotaryScaling::kLlama3;
  if (floor % 2 == 0 || goes_by_dim) {
    return;
  }
  const auto even = floor + 1;
  const auto power = static_cast<double>(even) / static_cast<double>(floor);
  options.dim(even).theta(std::pow(options.theta(), power));
}

/// Returns the share that the configuration has beside the parameters.
std::optional<double> share_beside(
    ModelConfig& config,
    const RotaryRules& rules) {
  return rules.partial_field == nullptr ? std::nullopt
                                        : config.number(rules.partial_field);
}

/// Classes differ in what null beside the parameters means.
void check_share_beside(
    ModelConfig& config,
    const Parameters& parameters,
    const RotaryRules& rules) {
  const bool is_null = rules.partial_field != nullptr &&
      config.contains(rules.partial_field) && !share_beside(config, rules);
  TORCH_ATTENTION_CHECK(
      !is_null || rules.partial.value_or(1) == 1 ||
          parameters.number("partial_rotary_factor"),
      "expected a number as {} of \"{}\", but got null",
      rules.partial_field,
      config.path());
}

/// Returns the share of each head that is rotated.
double share_of(
    ModelConfig& config,
    const Parameters& parameters,
    const RotaryRules& rules) {
  const auto of_config = share_beside(config, rules);
  const auto of_type = parameters.type() == "default"
      ? rules.partial_of_default_type
      : std::nullopt;
  const auto of_class = of_type ? of_type : rules.partial;
  // Whether a class copies it to its types depends on the kinds of all of them.
  TORCH_ATTENTION_CHECK(
      !rules.needs_types || !of_config ||
          parameters.number("partial_rotary_factor"),
      "expected {} in the rope_parameters of each type of layer in \"{}\", but "
      "got it beside them",
      rules.partial_field,
      config.path());
  const auto share = parameters.number("partial_rotary_factor")
                         .value_or(of_config.value_or(of_class.value_or(1)));
  TORCH_ATTENTION_CHECK(
      rules.partial || share == 1,
      "expected no partial_rotary_factor in \"{}\", whose model rotates all "
      "of each head, but got {}",
      config.path(),
      share);
  TORCH_ATTENTION_CHECK(
      share > 0 && share <= 1,
      "expected partial_rotary_factor in (0, 1] in \"{}\", but got {}",
      config.path(),
      share);
  return share;
}

} // namespace

Json common_parameters(ModelConfig& config) {
  const auto newer = config.object("rope_parameters");
  const auto older = config.object("rope_scaling");
  TORCH_ATTENTION_CHECK(
      newer.fields().empty() || older.fields().empty() || newer == older,
      "expected rope_parameters or rope_scaling in \"{}\", but got both, "
      "and they differ",
      config.path());
  return newer.fields().empty() ? older : newer;
}

std::string rope_type_of(const Json& parameters) {
  for (const auto* field : {"rope_type", "type"}) {
    if (auto found = parameters.get(field).as_text()) {
      return *found;
    }
  }
  return "default";
}

void set_frequency_factors(
    const std::vector<double>& factors,
    RotaryOptions& options) {
  // No sequence is so long.
  constexpr int64_t kEndless = int64_t{1} << 40;
  options.dim(2 * static_cast<int64_t>(factors.size()))
      .scaling(RotaryScaling::kLongRope)
      .original_context_length(kEndless)
      .short_factors(factors)
      .long_factors(factors)
      .attention_factor(1.0);
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

RotaryOptions rotary_of(
    ModelConfig& config,
    const std::string& layer_type,
    int64_t head_dim,
    const RotaryRules& rules) {
  const Parameters parameters{
      config.path(),
      parameters_of(config, layer_type, rules),
      !rules.by_type && !rules.needs_types};
  RotaryOptions options;
  options.theta(parameters.number("rope_theta").value_or(rules.theta));
  // Sarvam's name for the same.
  const auto type = parameters.type() == "deepseek_yarn" &&
          config.text("model_type") == "sarvam_mla"
      ? "yarn"
      : parameters.type();
  config.ignore("original_max_position_embeddings");
  check_share_beside(config, parameters, rules);
  if (type == "proportional") {
    const auto share = parameters.number("partial_rotary_factor")
                           .value_or(share_beside(config, rules)
                                         .value_or(rules.partial.value_or(1)));
    set_proportional(parameters, share, head_dim, options);
    return options;
  }
  const auto share = share_of(config, parameters, rules);
  if (type == "default") {
    parameters.check_only({});
  } else if (type == "linear") {
    parameters.check_only({"factor"});
    options.factor(parameters.required("factor"));
  } else if (type == "llama3") {
    parameters.check_only(
        {"factor",
         "low_freq_factor",
         "high_freq_factor",
         "original_max_position_embeddings"});
    options.scaling(RotaryScaling::kLlama3)
        .factor(parameters.required("factor"))
        .slow_turns(parameters.required("low_freq_factor"))
        .fast_turns(parameters.required("high_freq_factor"))
        .original_context_length(original_length(config, parameters));
  } else if (type == "yarn") {
    set_yarn(config, parameters, options);
  } else if (type == "dynamic") {
    parameters.check_only({"factor"});
    options.scaling(RotaryScaling::kDynamic)
        .factor(parameters.required("factor"))
        .original_context_length(
            config.required_integer("max_position_embeddings"));
  } else if (type == "longrope" || type == "su") {
    set_longrope(config, parameters, options);
  } else {
    TORCH_ATTENTION_CHECK(
        false,
        "expected a rotary embedding of type default, linear, llama3, yarn, "
        "dynamic, longrope or proportional in \"{}\", but got \"{}\"",
        config.path(),
        type);
  }
  const auto dim = static_cast<double>(head_dim) * share;
  TORCH_ATTENTION_CHECK(
      !rules.needs_even || static_cast<int64_t>(dim) % 2 == 0,
      "expected an even number of rotated elements of each head in \"{}\", "
      "but got {} of {}",
      config.path(),
      static_cast<int64_t>(dim),
      head_dim);
  set_dim(dim, options);
  return options;
}

TemperatureOptions temperature_of(ModelConfig& config) {
  constexpr auto* kParameters = "rope_parameters";
  const auto parameters = config.object(kParameters);
  constexpr auto* kLength = "original_max_position_embeddings";
  const auto beta = parameters.get("llama_4_scaling_beta").as_number();
  const auto type = rope_type_of(parameters);
  const bool is_scaled =
      type == "yarn" || type == "llama3" || type == "longrope";
  const auto of_model = is_scaled ? config.integer(kLength) : std::nullopt;
  // As in `transformers`, the field of the configuration takes precedence.
  const auto length =
      of_model ? of_model : parameters.get(kLength).as_integer();
  TORCH_ATTENTION_CHECK(
      beta && length,
      "expected llama_4_scaling_beta and original_max_position_embeddings in "
      "the rope_parameters of \"{}\"",
      config.path());
  config.drop(kParameters, "llama_4_scaling_beta");
  config.drop(kParameters, "max_position_embeddings");
  return TemperatureOptions(*length).scale(*beta).offset(0);
}

void ignore_rotary(ModelConfig& config) {
  for (const auto* field : kFields) {
    config.ignore(field);
  }
}

} // namespace torch_attention::weights::pretrained
