#pragma once

#include <json_tree.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::weights {

/// The `adapter_config.json` of a LoRA adapter that PEFT saved.
class LoraConfig {
 public:
  /// Throws c10::Error if the file cannot be read, is of another kind of
  /// adapter, or has a field that changes the sum W + B A * scale.
  explicit LoraConfig(const std::string& path);

  /// Throws c10::Error if PEFT would not apply the adapter to a module,
  /// although its file has matrices for it, or if a regular expression in the
  /// configuration is not understood.
  void check_target(const std::string& module) const;

  /// Returns the factor of B A for a module of rank `rank`: lora_alpha / rank,
  /// or lora_alpha / sqrt(rank) with use_rslora. Throws c10::Error if the
  /// configuration gives the module another rank.
  double scale_of(const std::string& module, int64_t rank) const;

  /// Returns whether the adapter has the whole module: "modules_to_save" of the
  /// configuration names it, or one that it is a part of.
  bool saves_module(const std::string& module) const;

  /// Whether weights have the shape (in, out), as in GPT-2.
  bool fan_in_fan_out() const {
    return fan_in_fan_out_;
  }

 private:
  void check_fields() const;
  /// Returns whether `layers_to_transform` has the layer of a module.
  bool transforms_layer_of(const std::string& module) const;
  /// Returns the numbers in a module's path that may be that of its layer, as
  /// `layers_pattern` says.
  std::vector<int64_t> numbers_of_layers(const std::string& module) const;
  /// Returns the value that `pattern` or else `field` gives to a module.
  double value_of(
      const std::string& pattern,
      const std::string& field,
      const std::string& module) const;

  std::string path_;
  Json fields_;
  bool fan_in_fan_out_ = false;
};

} // namespace torch_attention::weights
