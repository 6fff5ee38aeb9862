#pragma once

// Helpers for the tensors that a module takes from a file in some layout.

#include <support/layouts.h>

#include <weights/layouts/map.h>

namespace layout_test {

using namespace torch_attention::weights::layouts;

/// Returns the tensors of the module that are in `state`, in its order.
inline Keys keys_in(const Mapping& mapping, Source::State state) {
  Keys keys;
  for (const auto& [key, source] : mapping.sources) {
    if (source.state == state) {
      keys.push_back(key);
    }
  }
  return keys;
}

inline Keys missing_keys(const Mapping& mapping) {
  return keys_in(mapping, Source::State::kMissing);
}

inline Keys without_mask(const Mapping& mapping) {
  return keys_in(mapping, Source::State::kWithoutMask);
}

/// Returns the tensors that the file gives, zeros too.
inline Keys source_keys(const Mapping& mapping) {
  Keys keys;
  for (const auto& [key, source] : mapping.sources) {
    if (source.is_found() || source.state == Source::State::kZeros) {
      keys.push_back(key);
    }
  }
  return keys;
}

inline const Source* find_source(
    const Mapping& mapping,
    const std::string& key) {
  for (const auto& item : mapping.sources) {
    if (item.first == key) {
      return &item.second;
    }
  }
  return nullptr;
}

inline torch::Tensor value_of(
    const Source& source,
    const torch::Tensor& target) {
  std::vector<torch::Tensor> parts;
  for (const auto& part : source.parts) {
    parts.push_back(part.tensor);
  }
  return source.state == Source::State::kZeros
      ? torch::zeros_like(target)
      : torch::cat(parts, source.dimension);
}

/// Maps and copies; tensors that have no source keep their values.
inline Mapping take(
    const torch::nn::Module& module,
    const StateDict& file,
    const WeightLayout& layout = WeightLayout::automatic()) {
  const torch::NoGradGuard no_grad;
  const auto targets = state_dict(module);
  auto mapping = map_to_module(file, targets, layout);
  for (const auto& key : source_keys(mapping)) {
    CAPTURE(key);
    const auto value = value_of(*find_source(mapping, key), targets[key]);
    REQUIRE(value.sizes() == targets[key].sizes());
    targets[key].copy_(value);
  }
  return mapping;
}

/// Checks that every tensor has a source, except masks, and that every tensor
/// of the file was read.
inline void check_complete(const Mapping& mapping) {
  CHECK(mapping.problems == Keys{});
  CHECK(missing_keys(mapping) == Keys{});
  CHECK(mapping.unused == Keys{});
}

inline std::string looked_for(const Mapping& mapping, const std::string& key) {
  const auto* source = find_source(mapping, key);
  return source != nullptr && source->state == Source::State::kMissing
      ? source->looked_for
      : "not missing";
}

} // namespace layout_test
