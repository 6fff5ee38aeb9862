#include <weights/pretrained/code.h>

#include <format_text.h>

#include <optional>
#include <vector>

namespace torch_attention::weights::pretrained {

namespace {

/// A chain of setters, for the options that differ from their defaults.
class Calls {
 public:
  explicit Calls(std::string start) : text_(std::move(start)) {}

  template <typename T>
  Calls& add(const char* name, const T& value, const T& otherwise) {
    if (value != otherwise) {
      add_text(name, format_text("{}", value));
    }
    return *this;
  }

  template <typename T>
  Calls& add(const char* name, const std::optional<T>& value) {
    if (value) {
      add_text(name, format_text("{}", *value));
    }
    return *this;
  }

  Calls& add_text(const char* name, const std::string& value) {
    text_ += format_text("{}.{}({})", separator_, name, value);
    return *this;
  }

  Calls& add_text_unless(bool is_default, const char* name, const char* value) {
    return is_default ? *this : add_text(name, value);
  }

  /// Sets the text before each setter.
  Calls& separate_by(std::string separator) {
    separator_ = std::move(separator);
    return *this;
  }

  std::string text() const {
    return text_;
  }

 private:
  std::string text_;
  std::string separator_;
};

/// Returns null for the default scaling.
const char* scaling_code(RotaryScaling scaling) {
  switch (scaling) {
    case RotaryScaling::kLinear:
      return nullptr;
    case RotaryScaling::kLlama3:
      return "RotaryScaling::kLlama3";
    case RotaryScaling::kYarn:
      return "RotaryScaling::kYarn";
    case RotaryScaling::kDynamic:
      return "RotaryScaling::kDynamic";
    case RotaryScaling::kLongRope:
      return "RotaryScaling::kLongRope";
  }
  return nullptr;
}

std::string temperature_code(const TemperatureOptions& options) {
  return Calls(format_text("TemperatureOptions({})", options.floor_scale()))
      .add("scale", options.scale(), 0.1)
      .add("offset", options.offset(), int64_t{1})
      .add("by_order", options.by_order(), false)
      .text();
}

std::string rotary_code(const RotaryOptions& options) {
  const RotaryOptions plain;
  Calls calls("RotaryOptions()");
  calls.add("theta", options.theta(), plain.theta()).add("dim", options.dim());
  if (options.pairing() != RotaryPairing::kHalves) {
    calls.add_text(
        "pairing",
        options.pairing() == RotaryPairing::kInterleaved
            ? "RotaryPairing::kInterleaved"
            : "RotaryPairing::kHalvesOfHalves");
  }
  calls.add("factor", options.factor(), plain.factor());
  if (const auto* scaling = scaling_code(options.scaling())) {
    calls.add_text("scaling", scaling);
  }
  const auto add_list = [&](const char* name, const std::vector<double>& list) {
    if (!list.empty()) {
      calls.add_text(name, format_text("{{{}}}", fmt::join(list, ", ")));
    }
  };
  add_list("short_factors", options.short_factors());
  add_list("long_factors", options.long_factors());
  return calls.add("original_context_length", options.original_context_length())
      .add("fast_turns", options.fast_turns())
      .add("slow_turns", options.slow_turns(), plain.slow_turns())
      .add("attention_factor", options.attention_factor())
      .add("truncate", options.truncate(), true)
      .add("reversed", options.reversed(), false)
      .text();
}

std::string norm_code(const HeadNormOptions& options) {
  Calls calls(
      options.kind() == HeadNormKind::kLayer
          ? "HeadNormOptions(HeadNormKind::kLayer)"
          : "HeadNormOptions()");
  if (options.scope() == HeadNormScope::kHeadWeights) {
    calls.add_text("scope", "HeadNormScope::kHeadWeights");
  } else if (options.scope() == HeadNormScope::kAllHeads) {
    calls.add_text("scope", "HeadNormScope::kAllHeads");
  }
  return calls.add("eps", options.eps(), 1e-6)
      .add("weight", options.weight(), true)
      .add("unit_offset", options.unit_offset(), false)
      .add("bias", options.bias(), false)
      .add("after_rotary", options.after_rotary(), false)
      .text();
}

std::string gate_code(const OutputGateOptions& options) {
  Calls calls(
      options.scope() == GateScope::kHead
          ? "OutputGateOptions(GateScope::kHead)"
          : "OutputGateOptions()");
  if (options.function() == GateFunction::kSoftplus) {
    calls.add_text("function", "GateFunction::kSoftplus");
  }
  return calls.add("bias", options.bias()).text();
}

std::string biases_text(const MultiHeadAttentionOptions& options) {
  const bool query = options.query_bias().value_or(options.qkv_bias());
  const bool key = options.key_bias().value_or(options.qkv_bias());
  const bool value = options.value_bias().value_or(options.qkv_bias());
  if (query && key && value && options.out_bias()) {
    return "all biases";
  }
  std::vector<std::string> names;
  for (const auto& [has, name] :
       std::initializer_list<std::pair<bool, const char*>>{
           {query, "query"},
           {key, "key"},
           {value, "value"},
           {options.out_bias(), "out"}}) {
    if (has) {
      names.emplace_back(name);
    }
  }
  return names.empty() ? "no bias"
                       : format_text("bias of {}", fmt::join(names, ", "));
}

} // namespace

std::string words_of(const MultiHeadAttentionOptions& options, bool is_cross) {
  const auto head_dim =
      options.head_dim().value_or(options.d_out() / options.num_heads());
  std::vector<std::string> words;
  const auto kv_heads = options.num_kv_heads().value_or(options.num_heads());
  words.push_back(format_text(
      "{} heads of {}{}",
      options.num_heads(),
      head_dim,
      kv_heads == options.num_heads()
          ? ""
          : format_text(" ({} of keys)", kv_heads)));
  if (!is_cross) {
    words.emplace_back(options.causal() ? "causal" : "to both sides");
  }
  if (options.window()) {
    words.push_back(
        options.window_after() ? format_text(
                                     "window {} and {} after",
                                     *options.window(),
                                     *options.window_after())
                               : format_text("window {}", *options.window()));
  }
  if (options.chunk()) {
    words.push_back(format_text("chunks of {}", *options.chunk()));
  }
  if (options.rotary()) {
    words.emplace_back("rotary");
  }
  if (options.alibi()) {
    words.emplace_back("ALiBi");
  }
  if (options.qk_norm()) {
    words.emplace_back("norms of queries and keys");
  }
  if (options.softcap()) {
    words.push_back(format_text("softcap {}", *options.softcap()));
  }
  if (options.sinks()) {
    words.emplace_back("sinks");
  }
  if (options.temperature()) {
    words.emplace_back("temperature");
  }
  if (options.clip_qkv()) {
    words.push_back(format_text("clipped to {}", *options.clip_qkv()));
  }
  if (options.value_norm_eps()) {
    words.emplace_back("norms of values");
  }
  if (options.value_scale() != 1) {
    words.push_back(format_text("values times {}", options.value_scale()));
  }
  if (options.rotate_values()) {
    words.emplace_back("rotated values");
  }
  if (options.query_scale()) {
    words.emplace_back("scaled queries");
  }
  if (options.out_norm()) {
    words.emplace_back("norm of the context");
  }
  if (options.output_gate()) {
    words.emplace_back(
        options.output_gate()->scope() == GateScope::kHead ? "gates of heads"
                                                           : "gate");
  }
  words.push_back(biases_text(options));
  return format_text("{}", fmt::join(words, ", "));
}

std::string code_of(const MultiHeadAttentionOptions& options) {
  Calls calls(format_text(
      "MultiHeadAttentionOptions({}, {}, {}, {})",
      options.d_in(),
      options.d_out(),
      options.context_length(),
      options.num_heads()));
  calls.separate_by("\n    ")
      .add("dropout", options.dropout(), 0.0)
      .add("qkv_bias", options.qkv_bias(), false)
      .add("query_bias", options.query_bias())
      .add("key_bias", options.key_bias())
      .add("value_bias", options.value_bias())
      .add("causal", options.causal(), true)
      .add("head_dim", options.head_dim())
      .add("value_dim", options.value_dim())
      .add("scale", options.scale())
      .add("out_bias", options.out_bias(), true)
      .add("window", options.window())
      .add("window_after", options.window_after())
      .add("chunk", options.chunk())
      .add("register_mask", options.register_mask(), true)
      .add("num_kv_heads", options.num_kv_heads());
  if (options.qk_norm()) {
    calls.add_text("qk_norm", norm_code(*options.qk_norm()));
  }
  if (options.rotary()) {
    calls.add_text("rotary", rotary_code(*options.rotary()));
  }
  if (options.temperature()) {
    calls.add_text("temperature", temperature_code(*options.temperature()));
  }
  if (options.out_norm()) {
    calls.add_text("out_norm", norm_code(*options.out_norm()));
  }
  if (options.output_gate()) {
    calls.add_text("output_gate", gate_code(*options.output_gate()));
  }
  return calls.add("softcap", options.softcap())
      .add("alibi", options.alibi(), false)
      .add("sinks", options.sinks(), false)
      .add("clip_qkv", options.clip_qkv())
      .add("value_norm_eps", options.value_norm_eps())
      .add("value_scale", options.value_scale(), 1.0)
      .add("rotate_values", options.rotate_values(), false)
      .add("query_scale", options.query_scale(), false)
      .add("needs_blocks", options.needs_blocks(), false)
      .add("needs_value_input", options.needs_value_input(), false)
      .add_text_unless(
          options.block_scope() == BlockScope::kCausal,
          "block_scope",
          options.block_scope() == BlockScope::kNone ? "BlockScope::kNone"
                                                     : "BlockScope::kWindow")
      .text();
}

} // namespace torch_attention::weights::pretrained
