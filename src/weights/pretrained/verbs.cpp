// The verbs of models.json.

#include <weights/pretrained/verbs.h>

#include <format_text.h>
#include <weights/pretrained/describe.h>
#include <weights/pretrained/head_verbs.h>
#include <weights/pretrained/verb_arguments.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

/// Evaluates "yes", "no", or the name of a flag with an optional default.
bool flag_of(Layer& layer, const Arguments& arguments) {
  const auto& first = arguments.front();
  if (first == "yes" || first == "no") {
    return first == "yes";
  }
  const bool otherwise = arguments.size() > 1 && arguments[1] == "yes";
  return layer.config.flag(first).value_or(otherwise);
}

void run_biases(Layer& layer, const Arguments& arguments) {
  const bool bias = flag_of(layer, arguments);
  layer.options.qkv_bias(bias).out_bias(bias);
}

void run_qkv_bias(Layer& layer, const Arguments& arguments) {
  layer.options.qkv_bias(flag_of(layer, arguments));
}

void run_key_bias(Layer& layer, const Arguments& arguments) {
  layer.options.key_bias(flag_of(layer, arguments));
}

void run_value_bias(Layer& layer, const Arguments& arguments) {
  layer.options.value_bias(flag_of(layer, arguments));
}

void run_out_bias(Layer& layer, const Arguments& arguments) {
  layer.options.out_bias(flag_of(layer, arguments));
}

/// Sets the options that encoders like BERT have in common.
void run_encoder(Layer& layer, const Arguments& /*arguments*/) {
  layer.options.causal(false).qkv_bias(true).dropout(
      layer.config.number("attention_probs_dropout_prob").value_or(0));
}

/// Sets the options of one of two stacks, and ignores the sizes of the other.
void run_stack(Layer& layer, const Arguments& /*arguments*/) {
  layer.options.causal(
      layer.part == PretrainedPart::kDecoder && !layer.is_cross);
  layer.config.ignore(
      {"encoder_attention_heads",
       "decoder_attention_heads",
       "num_attention_heads",
       "num_key_value_heads",
       "max_position_embeddings",
       "max_source_positions",
       "max_target_positions"});
}

void run_absolute_positions(Layer& layer, const Arguments& /*arguments*/) {
  check_absolute(layer, positions_of(layer));
}

void run_causal(Layer& layer, const Arguments& arguments) {
  if (arguments.front() == "as decoder") {
    const auto is_decoder = layer.config.flag("is_decoder").value_or(false);
    // Ignored if the class has no such field.
    layer.options.causal(is_decoder && layer.config.class_has("is_decoder"));
    return;
  }
  layer.options.causal(flag_of(layer, arguments));
}

void run_heads(Layer& layer, const Arguments& /*arguments*/) {
  set_heads(layer);
}

void run_kv_heads(Layer& layer, const Arguments& arguments) {
  layer.options.num_kv_heads(layer.config.integer(arguments.front()));
}

void run_head_dim(Layer& layer, const Arguments& arguments) {
  layer.options.head_dim(layer.config.integer(arguments.front()));
}

void run_dropout(Layer& layer, const Arguments& arguments) {
  layer.options.dropout(layer.config.number(arguments.front()).value_or(0));
}

/// Takes a number, "in FIELD", or "1/sqrt FIELD" with a default.
void run_scale(Layer& layer, const Arguments& arguments) {
  const auto& first = arguments.front();
  if (const auto field = text_after(first, "in ")) {
    layer.options.scale(layer.config.number(*field));
  } else if (const auto squared = text_after(first, "1/sqrt ")) {
    const auto otherwise = number_of(arguments.at(1));
    layer.options.scale(
        1 / std::sqrt(layer.config.number(*squared).value_or(otherwise)));
  } else {
    layer.options.scale(number_of(first));
  }
}

void run_softcap(Layer& layer, const Arguments& arguments) {
  layer.options.softcap(layer.config.number(arguments.front()));
}

void run_clip(Layer& layer, const Arguments& arguments) {
  layer.options.clip_qkv(layer.config.number(arguments.front()));
}

void run_alibi(Layer& layer, const Arguments& /*arguments*/) {
  layer.options.alibi(true);
}

void run_sinks(Layer& layer, const Arguments& /*arguments*/) {
  layer.options.sinks(true);
}

/// Without arguments, or if one of these flags is set, callers pass a bias.
void run_needs_bias(Layer& layer, const Arguments& arguments) {
  layer.needs_bias = arguments.empty();
  for (const auto& field : arguments) {
    layer.needs_bias |= layer.config.flag(field).value_or(false);
  }
}

/// Callers pass a bias, which the first argument names; with further ones only
/// if one of these flags is set.
void run_bias_of_caller(Layer& layer, const Arguments& arguments) {
  layer.bias_of_caller = arguments.front();
  run_needs_bias(layer, {arguments.begin() + 1, arguments.end()});
}

/// Calls need `visible_blocks`.
void run_needs_blocks(Layer& layer, const Arguments& /*arguments*/) {
  layer.options.needs_blocks(true);
}

/// Sets the input size of keys and values in cross-attention.
void run_context(Layer& layer, const Arguments& arguments) {
  layer.d_context = layer.config.integer(arguments.front());
}

/// The rotary embedding of a model, and whether this layer has it.
struct RotaryOfModel {
  RotaryRules rules;
  RotaryPairing pairing = RotaryPairing::kHalves;
  bool rotates = true;
  bool is_reversed = false;
  /// Whether the caller passes the angles.
  bool is_of_caller = false;
};

RotaryByType& rotary_by_type(RotaryRules& rules) {
  if (!rules.by_type) {
    rules.by_type.emplace();
  }
  return *rules.by_type;
}

/// Reads an argument for `RotaryRules`; returns false for all others. `rules`
/// then may point into `argument`.
bool take_rule(const std::string& argument, RotaryRules& rules) {
  const auto takes_field = [&](std::string_view word, const char*& option) {
    const bool takes = starts_with(argument, word);
    option = takes ? argument.c_str() + word.size() : option;
    return takes;
  };
  const auto takes_number = [&](const char* word, auto& option) {
    const auto number = number_after(argument, word);
    option = number ? *number : option;
    return number.has_value();
  };
  if (starts_with(argument, "local theta ")) {
    auto& local = rotary_by_type(rules);
    return takes_field("local theta in ", local.local_theta_field) ||
        takes_number("local theta ", local.local_theta);
  }
  return takes_field("theta in ", rules.theta_field) ||
      takes_number("theta ", rules.theta) ||
      takes_field("share in ", rules.partial_field) ||
      takes_number("share of default type ", rules.partial_of_default_type) ||
      takes_number("share ", rules.partial);
}

RotaryOfModel rotary_of_model(Layer& layer, const Arguments& arguments) {
  RotaryOfModel model;
  const bool has_window = layer.type == "sliding_attention";
  for (const auto& argument : arguments) {
    if (argument == "interleaved") {
      model.pairing = RotaryPairing::kInterleaved;
    } else if (argument == "halves of halves") {
      model.pairing = RotaryPairing::kHalvesOfHalves;
    } else if (argument == "reversed") {
      model.is_reversed = true;
    } else if (argument == "by type") {
      model.rules.needs_types = true;
    } else if (argument == "no share beside") {
      model.rules.partial_field = nullptr;
      layer.config.ignore("partial_rotary_factor");
    } else if (argument == "even") {
      model.rules.needs_even = true;
    } else if (argument == "scales local") {
      rotary_by_type(model.rules).scales_sliding = true;
    } else if (argument == "none") {
      model.rotates = false;
    } else if (argument == "in windows") {
      model.rotates = has_window;
    } else if (argument == "in windows if any") {
      model.rotates = has_window || !layer.config.has("sliding_window");
    } else if (argument == "of caller") {
      model.is_of_caller = true;
    } else if (!take_rule(argument, model.rules)) {
      throw_unknown("rotary", argument);
    }
  }
  return model;
}

void run_rotary(Layer& layer, const Arguments& arguments) {
  const auto model = rotary_of_model(layer, arguments);
  if (model.is_of_caller) {
    layer.options.rotary(RotaryOptions().pairing(model.pairing));
    layer.needs_rotary = true;
  }
  if (model.rotates && !model.is_of_caller) {
    set_rotary(layer, model.rules, model.pairing);
    layer.options.rotary()->reversed(model.is_reversed);
  } else {
    ignore_rotary(layer.config);
  }
}

/// "window: FIELD", or "window: FIELD, if FLAG": the window of all layers.
void run_window(Layer& layer, const Arguments& arguments) {
  const auto window = layer.config.integer(arguments.front());
  const auto flag =
      arguments.size() > 1 ? text_after(arguments[1], "if ") : std::nullopt;
  if (!flag || layer.config.flag(*flag).value_or(false)) {
    layer.options.window(window);
  }
}

/// Returns whether a condition of `run_types` holds for a layer.
bool holds_for(Layer& layer, const std::string& condition) {
  const auto is_first_of = [&](const std::string& count) {
    return layer.index % std::stoll(count) == 0;
  };
  const auto max_window_layers = [&] {
    return layer.config.integer("max_window_layers").value_or(28);
  };
  if (const auto first = text_after(condition, "first of ")) {
    return is_first_of(*first);
  }
  if (const auto rest = text_after(condition, "all but first of ")) {
    return !is_first_of(*rest);
  }
  if (const auto last = text_after(condition, "all but last of ")) {
    return is_before_last_of(layer, std::stoll(*last));
  }
  if (condition == "after max_window_layers") {
    return layer.index >= max_window_layers();
  }
  if (condition == "before max_window_layers") {
    return layer.index < max_window_layers();
  }
  if (const auto field = text_after(condition, "if any ")) {
    return layer.config.has(*field);
  }
  if (const auto flag = text_after(condition, "if ")) {
    return layer.config.flag(*flag).value_or(false);
  }
  throw_unknown("types", condition);
}

/// Without `layer_types` in the configuration, a layer has a window if all
/// conditions hold: "first of N", "all but first of N" and "all but last of N"
/// layers, "after max_window_layers", "before max_window_layers", "if any
/// FIELD" and "if FLAG". Without conditions no layer has one.
void run_types(Layer& layer, const Arguments& arguments) {
  bool has_window = !arguments.empty();
  for (const auto& condition : arguments) {
    // Reads the fields of all conditions, so that none counts as unknown.
    has_window = holds_for(layer, condition) && has_window;
  }
  set_type(layer, has_window);
}

void run_types_by_turn(Layer& layer, const Arguments& arguments) {
  set_type_by_turn(layer, std::stoll(arguments.front()));
}

void run_types_by_pattern(Layer& layer, const Arguments& arguments) {
  set_type_by_pattern(layer, std::stoll(arguments.front()));
}

void run_radius(Layer& layer, const Arguments& /*arguments*/) {
  see_radius(layer);
}

/// Fields with positions are not a limit, as the model computes more.
void run_no_limit(Layer& layer, const Arguments& /*arguments*/) {
  layer.options.context_length(kUnlimited);
}

/// Gives layers after those that a field counts the path of a second list.
void run_second_list(Layer& layer, const Arguments& arguments) {
  const auto first = layer.config.required_integer(arguments[1]);
  if (layer.index >= first) {
    auto path = arguments[0];
    layer.path =
        path.replace(path.find("{}"), 2, std::to_string(layer.index - first));
  }
}

void run_ignore(Layer& layer, const Arguments& arguments) {
  for (const auto& field : arguments) {
    layer.config.ignore(field);
  }
}

/// Removes fields that the class does not read, and the other steps would.
void run_forget(Layer& layer, const Arguments& arguments) {
  for (const auto& field : arguments) {
    layer.config.forget(field);
  }
}

void run_refuse(Layer& layer, const Arguments& arguments) {
  refuse_flag(layer, arguments[0].c_str(), arguments[1].c_str());
}

void run_refuse_stack(Layer& layer, const Arguments& arguments) {
  refuse_stack(layer, arguments[0], arguments[1]);
}

void run_stored_frequencies(Layer& layer, const Arguments& arguments) {
  layer.stored_rotary.frequencies = arguments.front();
}

void run_stored_angles(Layer& layer, const Arguments& arguments) {
  layer.stored_rotary.angles = arguments.front();
}

/// Values are made of tokens without positions, which callers pass.
void run_value_input(Layer& layer, const Arguments& /*arguments*/) {
  layer.options.needs_value_input(true);
}

/// Returns the layout of BERT, with the norms within the attention's path.
WeightLayout bert_layout() {
  auto layout = WeightLayout::bert();
  for (const auto* norm : {"LayerNorm", "ln", "self_attn_layer_norm"}) {
    for (const auto* part : {".weight", ".bias", ".gamma", ".beta"}) {
      layout.outside(std::string(norm) + part);
    }
  }
  return layout;
}

/// Returns a built-in layout, or "linear" or "joined" with the names of the
/// layout and its layers. The arguments start at index `first`.
WeightLayout layout_of(
    const Layer& layer,
    const Arguments& arguments,
    size_t first) {
  const auto& kind = arguments.at(first);
  const auto name = [&](size_t i) -> const std::string& {
    return arguments.at(first + i);
  };
  if (kind == "linear") {
    return linear_layers(name(1), name(2), name(3), name(4), name(5));
  }
  if (kind == "joined") {
    return joined_layout(name(1), name(2), name(3));
  }
  if (kind == "bert with norms") {
    return bert_layout();
  }
  if (kind == "gpt_neox") {
    return WeightLayout::gpt_neox(layer.options.num_heads());
  }
  if (kind == "llama") {
    return WeightLayout::llama();
  }
  if (kind == "bart") {
    return WeightLayout::bart();
  }
  if (kind == "gpt2") {
    return WeightLayout::gpt2();
  }
  if (kind == "torch") {
    return WeightLayout::torch_multihead_attention();
  }
  throw_unknown("layout", kind);
}

void run_layout(Layer& layer, const Arguments& arguments) {
  layer.layout = layout_of(layer, arguments, 0);
}

/// Adds an alternative path and layout in files.
void run_also_at(Layer& layer, const Arguments& arguments) {
  layer.others.emplace_back(arguments[0], layout_of(layer, arguments, 1));
}

void run_rename(Layer& layer, const Arguments& arguments) {
  layer.layout.rename(arguments[0], arguments[1]);
}

void run_rename_norms(Layer& layer, const Arguments& arguments) {
  rename_norms(layer, arguments[0], arguments[1]);
}

void run_names_of_diffusers(Layer& layer, const Arguments& /*arguments*/) {
  add_names_of_diffusers(layer);
}

/// Ignores tensors in the attention's path.
void run_ignore_tensors(Layer& layer, const Arguments& arguments) {
  for (const auto& key : arguments) {
    layer.layout.ignore(key);
  }
}

/// Names tensors in the attention's path that belong to other modules.
void run_outside(Layer& layer, const Arguments& arguments) {
  for (const auto& key : arguments) {
    layer.layout.outside(key);
  }
}

const std::map<std::string, Describe>& describers() {
  static const auto table = [] {
    std::map<std::string, Describe> all;
    for (const auto& of_file :
         {llama_describers(),
          window_describers(),
          own_rule_describers(),
          hybrid_describers(),
          gpt_describers(),
          disentangled_describers(),
          encoder_describers(),
          longformer_describers(),
          relative_describers(),
          vision_describers(),
          encoder_decoder_describers(),
          detr_describers(),
          context_describers()}) {
      for (const auto& [name, describe] : of_file) {
        TORCH_INTERNAL_ASSERT(all.emplace(name, describe).second, name);
      }
    }
    return all;
  }();
  return table;
}

void run_call(Layer& layer, const Arguments& arguments) {
  const auto found = describers().find(arguments.front());
  if (found == describers().end()) {
    throw_unknown("call", arguments.front());
  }
  found->second(layer);
}

/// A verb, and its numbers of arguments.
struct KnownVerb {
  Verb run;
  size_t fewest;
  size_t most;
};

const std::map<std::string, KnownVerb>& verbs() {
  constexpr auto kAny = std::numeric_limits<size_t>::max();
  static const std::map<std::string, KnownVerb> table{
      {"absolute positions", {run_absolute_positions, 0, 0}},
      {"alibi", {run_alibi, 0, 0}},
      {"also at", {run_also_at, 2, 7}},
      {"bias of caller", {run_bias_of_caller, 1, kAny}},
      {"biases", {run_biases, 1, 2}},
      {"call", {run_call, 1, 1}},
      {"causal", {run_causal, 1, 1}},
      {"clip", {run_clip, 1, 1}},
      {"context", {run_context, 1, 1}},
      {"dropout", {run_dropout, 1, 1}},
      {"encoder", {run_encoder, 0, 0}},
      {"forget", {run_forget, 1, kAny}},
      {"gate", {run_gate, 1, 4}},
      {"head dim", {run_head_dim, 1, 1}},
      {"heads", {run_heads, 0, 0}},
      {"ignore", {run_ignore, 1, kAny}},
      {"ignore tensors", {run_ignore_tensors, 1, kAny}},
      {"key bias", {run_key_bias, 1, 2}},
      {"kv heads", {run_kv_heads, 1, 1}},
      {"layout", {run_layout, 1, 6}},
      {"names of diffusers", {run_names_of_diffusers, 0, 0}},
      {"needs bias", {run_needs_bias, 0, kAny}},
      {"needs blocks", {run_needs_blocks, 0, 0}},
      {"no limit", {run_no_limit, 0, 0}},
      {"norms", {run_norms, 1, kAny}},
      {"out bias", {run_out_bias, 1, 2}},
      {"out norm", {run_out_norm, 2, kAny}},
      {"outside", {run_outside, 1, kAny}},
      {"qkv bias", {run_qkv_bias, 1, 2}},
      {"query scale", {run_query_scale, 1, 1}},
      {"radius", {run_radius, 0, 0}},
      {"refuse", {run_refuse, 2, 2}},
      {"refuse stack", {run_refuse_stack, 2, 2}},
      {"rename", {run_rename, 2, 2}},
      {"rename norms", {run_rename_norms, 2, 2}},
      {"rotary", {run_rotary, 0, kAny}},
      {"scale", {run_scale, 1, 2}},
      {"second list", {run_second_list, 2, 2}},
      {"sinks", {run_sinks, 0, 0}},
      {"softcap", {run_softcap, 1, 1}},
      {"stack", {run_stack, 0, 0}},
      {"stored angles", {run_stored_angles, 1, 1}},
      {"stored frequencies", {run_stored_frequencies, 1, 1}},
      {"types", {run_types, 0, kAny}},
      {"types by pattern", {run_types_by_pattern, 1, 1}},
      {"types by turn", {run_types_by_turn, 1, 1}},
      {"value bias", {run_value_bias, 1, 2}},
      {"value input", {run_value_input, 0, 0}},
      {"value scale", {run_value_scale, 1, 1}},
      {"window", {run_window, 1, 2}},
  };
  return table;
}

} // namespace

Step read_step(const std::string& text) {
  const auto colon = text.find(": ");
  Arguments arguments;
  for (auto begin = colon; begin != std::string::npos;) {
    begin += 2;
    const auto end = text.find(", ", begin);
    arguments.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  const auto found = verbs().find(text.substr(0, colon));
  TORCH_INTERNAL_ASSERT(
      found != verbs().end() && arguments.size() >= found->second.fewest &&
          arguments.size() <= found->second.most,
      "models.json: unknown verb, or too few or many arguments: ",
      text);
  return {found->second.run, std::move(arguments)};
}

std::vector<std::string> describer_names() {
  std::vector<std::string> names;
  for (const auto& [name, describe] : describers()) {
    names.push_back(name);
  }
  return names;
}

} // namespace torch_attention::weights::pretrained
