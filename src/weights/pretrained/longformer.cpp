#include <weights/pretrained/describe.h>

#include <check.h>

#include <cstdint>
#include <string>

// Longformer and LED's encoder, whose tokens see a window and global tokens.

namespace torch_attention::weights::pretrained {

namespace {

constexpr auto* kWindow = "attention_window";

/// Returns the window of the layer: one for all, or an element of a list.
int64_t window_of(Layer& layer, const char* layers) {
  auto& config = layer.config;
  const auto length = config.length(kWindow);
  const auto count = config.required_integer(layers);
  TORCH_ATTENTION_CHECK(
      !length || *length == count,
      "expected {} elements of \"{}\" in \"{}\", one for each layer, but got "
      "{}",
      count,
      kWindow,
      config.path(),
      length.value_or(0));
  const auto of_layer = length ? config.integer_at(kWindow, layer.index)
                               : config.integer(kWindow);
  const auto window = of_layer.value_or(0);
  TORCH_ATTENTION_CHECK(
      window > 0 && window % 2 == 0,
      "expected even numbers > 0 as \"{}\" of \"{}\", but got {} for layer {}",
      kWindow,
      config.path(),
      window,
      layer.index);
  return window;
}

/// Sets the options, and the names of the layers that all tokens have, and of
/// those of global tokens.
void set_longformer(Layer& layer, const char* layers, const std::string& part) {
  const auto& options = layer.options;
  layer.longformer = LongformerAttentionOptions(
                         options.d_in(), options.d_out(), options.num_heads())
                         .attention_window(window_of(layer, layers))
                         .dropout(options.dropout());
  for (const std::string each : {"query", "key", "value"}) {
    for (const auto* end : {".weight", ".bias"}) {
      layer.layout.rename(part + each + end, "W_" + each + end)
          .rename(part + each + "_global" + end, "W_" + each + "_global" + end);
    }
  }
}

void describe_longformer(Layer& layer) {
  layer.layout = WeightLayout("longformer");
  set_longformer(layer, "num_hidden_layers", "self.");
  for (const std::string end : {"weight", "bias"}) {
    layer.layout.rename("output.dense." + end, "out_proj." + end)
        .outside("output.LayerNorm." + end);
  }
}

/// The decoder is that of BART.
void describe_led(Layer& layer) {
  if (layer.part == PretrainedPart::kDecoder) {
    layer.layout = WeightLayout::bart();
    layer.config.ignore(kWindow);
    return;
  }
  layer.layout = WeightLayout("led");
  set_longformer(layer, "encoder_layers", "longformer_self_attn.");
  for (const std::string end : {"weight", "bias"}) {
    layer.layout.rename("output." + end, "out_proj." + end);
  }
}

} // namespace

Describers longformer_describers() {
  return {
      {"describe_led", describe_led},
      {"describe_longformer", describe_longformer},
  };
}

} // namespace torch_attention::weights::pretrained
