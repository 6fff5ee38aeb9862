#include <weights/plan.h>

#include <check.h>
#include <error_message.h>
#include <format_text.h>
#include <weights/causal_masks.h>
#include <weights/hints.h>
#include <weights/layout_beside.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace torch_attention::weights {

using namespace files;
using namespace layouts;

namespace {

/// Returns "MultiHeadAttention" for "torch_attention::MultiHeadAttentionImpl".
std::string class_name(const torch::nn::Module& module) {
  // Module::name would end the process if memory runs out.
  auto name = c10::demangle(typeid(module).name());
  const auto colon = name.rfind(':');
  if (colon != std::string::npos) {
    name.erase(0, colon + 1);
  }
  constexpr std::string_view kSuffix = "Impl";
  if (name.size() > kSuffix.size() && ends_with(name, kSuffix)) {
    name.resize(name.size() - kSuffix.size());
  }
  return name;
}

/// Returns whether LibTorch can convert between two dtypes. Tries it with one
/// element, before anything is changed.
bool can_convert(torch::ScalarType from, torch::ScalarType to) {
  const auto source = at::empty({1}, from);
  auto target = at::empty({1}, to);
  try {
    target.copy_(source);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

/// Returns the bytes of the values in `dtype`, in which NaN equals itself.
torch::Tensor bits_of(
    const Source& source,
    torch::ScalarType dtype,
    const StoredTensors& stored) {
  std::vector<torch::Tensor> parts;
  for (const auto& part : source.parts) {
    stored.fill(part.tensor);
    parts.push_back(part.tensor.resolve_conj().resolve_neg().to(dtype));
  }
  const auto whole =
      parts.size() == 1 ? parts.front() : at::cat(parts, source.dimension);
  return whole.reshape({-1}).contiguous().view(torch::kByte);
}

/// Returns the shape of the concatenated parts; none if they do not fit.
std::optional<std::vector<int64_t>> joined_shape(const Source& source) {
  auto shape = source.parts.front().tensor.sizes().vec();
  const auto dimension = static_cast<size_t>(source.dimension);
  if (source.parts.size() > 1 && dimension >= shape.size()) {
    return std::nullopt;
  }
  for (size_t i = 1; i < source.parts.size(); ++i) {
    auto part = source.parts[i].tensor.sizes().vec();
    if (part.size() != shape.size()) {
      return std::nullopt;
    }
    shape[dimension] += part[dimension];
    part[dimension] = shape[dimension];
    if (part != shape) {
      return std::nullopt;
    }
  }
  return shape;
}

/// Returns the shapes of parts that cannot be concatenated.
std::string shapes_text(const Source& source) {
  std::vector<std::string> shapes;
  for (const auto& part : source.parts) {
    shapes.push_back(shape_text(part.tensor.sizes()));
  }
  return list_text(shapes, " + ");
}

/// Returns the keys of the file that `key` is loaded from, if they differ.
std::string origin(const std::string& key, const Source& source) {
  const auto keys = source.keys();
  if (keys.size() == 1 && keys.front() == key) {
    return "";
  }
  return format_text(" (from {})", quoted_list(keys));
}

/// Returns the module's tensors, with the whole shape for those in `shards`.
/// These have a single element in memory: only their shapes are used.
StateDict wholes_of(
    const StateDict& targets,
    const std::vector<WeightShard>& shards) {
  StateDict wholes = targets;
  for (const auto& shard : shards) {
    auto* const whole = wholes.find(shard.key);
    TORCH_ATTENTION_CHECK(
        whole != nullptr,
        "expected shards of the module, but got one of {}",
        shard.key);
    auto sizes = whole->sizes().vec();
    const auto dimension = static_cast<size_t>(shard.dimension);
    TORCH_ATTENTION_CHECK(
        shard.dimension >= 0 && dimension < sizes.size() &&
            sizes[dimension] == shard.size && shard.start >= 0 &&
            shard.start <= shard.total - shard.size,
        "expected a shard of {} of shape {} inside the whole, but got "
        "dimension = {}, start = {}, size = {}, total = {}",
        shard.key,
        shape_text(whole->sizes()),
        shard.dimension,
        shard.start,
        shard.size,
        shard.total);
    sizes[dimension] = shard.total;
    *whole = at::empty({}, whole->options().requires_grad(false)).expand(sizes);
  }
  return wholes;
}

/// Returns the source of `shard`: views of the file's tensors.
Source part_of(const Source& source, const WeightShard& shard) {
  auto result = source;
  result.parts.clear();
  const bool joined =
      source.parts.size() > 1 && source.dimension == shard.dimension;
  int64_t begin = 0;
  for (const auto& part : source.parts) {
    // The range of the shard in this part.
    const auto size = part.tensor.size(shard.dimension);
    const auto first = std::max<int64_t>(shard.start - begin, 0);
    const auto end = std::min(shard.start + shard.size - begin, size);
    if (joined) {
      begin += size;
    }
    if (first < end) {
      result.parts.push_back(part);
      result.parts.back().tensor =
          part.tensor.narrow(shard.dimension, first, end - first);
    }
  }
  return result;
}

/// Returns whether no two elements of `tensor` share their memory.
bool is_written_once(const torch::Tensor& tensor) {
  if (tensor.layout() != torch::kStrided || tensor.numel() <= 1) {
    return true;
  }
  std::vector<std::pair<int64_t, int64_t>> dimensions;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) {
      dimensions.emplace_back(tensor.stride(i), tensor.size(i));
    }
  }
  std::sort(dimensions.begin(), dimensions.end());
  // Each dimension steps over everything that the smaller ones span.
  int64_t span = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride < span) {
      return false;
    }
    span += stride * (size - 1);
  }
  return true;
}

/// Collects the copies to make, and all errors.
class Planner {
 public:
  Planner(
      const torch::nn::Module& module,
      const WeightFile& file,
      const LoadOptions& options)
      : module_(module),
        file_(file),
        options_(options),
        targets_(state_dict(module)),
        wholes_(wholes_of(targets_, options.shards())),
        masks_(causal_masks(module)),
        mapping_(map_to_module(
            file.tensors,
            wholes_,
            options.layout(),
            layout_beside(file.path, file.start))) {
    for (const auto& shard : options.shards()) {
      shards_.emplace(shard.key, &shard);
    }
  }

  Plan make() {
    for (const auto& [key, source] : mapping_.sources) {
      const bool is_mask = masks_.count(key) > 0;
      switch (source.state) {
        case Source::State::kFound:
        case Source::State::kZeros:
          if (!is_mask || options_.mask() != MaskPolicy::kIgnore) {
            add(key, targets_[key], source, is_mask);
          }
          break;
        case Source::State::kMissing:
          if (!is_mask || options_.mask() == MaskPolicy::kEqual) {
            plan_.report.missing.push_back(key);
          }
          break;
        case Source::State::kWithoutMask:
        case Source::State::kRefused: // reported as a problem
          break;
      }
    }
    for (const auto& key : mapping_.unused) {
      if (!is_spare_mask(key)) {
        add_unused(key);
      }
    }
    for (const auto& key : file_.others) {
      add_unused(key);
    }
    for (const auto& value : file_.foreign) {
      plan_.report.passed_over.push_back(text_of(value));
    }
    plan_.report.layout = mapping_.layout;
    plan_.report.remarks = mapping_.remarks;
    if (!options_.adapter().empty() && !has_adapter_) {
      plan_.report.remarks.push_back(format_text(
          "the adapter \"{}\" has no matrices for these tensors",
          options_.adapter()));
    }
    throw_problems();
    return std::move(plan_);
  }

 private:
  /// Returns whether this is a causal mask in the file for an attention module
  /// that has no mask (`register_mask(false)`), since it only expresses
  /// `causal`.
  bool is_spare_mask(const std::string& key) const {
    if (!is_mask_key(key) || targets_.contains(key)) {
      return false;
    }
    const auto scope = key.substr(0, key.size() - std::string("mask").size());
    if (!targets_.contains(scope + "W_query.weight")) {
      return false;
    }
    file_.stored.fill(file_.tensors[key]);
    return is_causal_mask(file_.tensors[key]);
  }

  /// Returns why a tensor of the module cannot be written to; null if it can.
  const char* why_not_written(const torch::Tensor& target) const {
    if (target.is_meta() ||
        (options_.device() && options_.device()->is_meta())) {
      return "has no memory (device meta): make the module on a device that has";
    }
    if (target.is_inference() && !c10::InferenceMode::is_enabled()) {
      return "was made in c10::InferenceMode, and can only be changed there";
    }
    return is_written_once(target)
        ? nullptr
        : "has elements that share their memory (expand), which cannot take "
          "values of their own: give it a clone() before";
  }

  /// Adds a key of the file that the module has no tensor for. An extra state
  /// is not a weight: Python modules store it for their own use.
  void add_unused(const std::string& key) {
    constexpr const char* kExtraState = "_extra_state";
    if (key == kExtraState || ends_with(key, format_text(".{}", kExtraState))) {
      plan_.report.passed_over.push_back(format_text(
          "\"{}{}\" is the extra state of a module of Python",
          file_.start,
          key));
    } else {
      plan_.report.unexpected.push_back(key);
    }
  }

  void add(
      const std::string& key,
      const torch::Tensor& target,
      const Source& source,
      bool is_mask) {
    if (const auto* why = why_not_written(target)) {
      problems_.push_back(format_text(
          "memory mismatch for {}: the module's tensor {}.", key, why));
      return;
    }
    if (source.state == Source::State::kZeros) {
      plan_.assignments.push_back({target, source});
      plan_.report.zeros.push_back(key);
      return;
    }
    if (has_unreadable(key, source)) {
      return;
    }
    const auto shape = joined_shape(source);
    const auto& whole = wholes_[key];
    if (!shape || *shape != whole.sizes()) {
      problems_.push_back(format_text(
          "size mismatch for {}: copying a param with shape {}{} from "
          "checkpoint, the shape in current model is {}.{}",
          key,
          shape ? shape_text(*shape) : shapes_text(source),
          origin(key, source),
          shape_text(whole.sizes()),
          is_mask ? " The mask is as large as context_length: "
                    "LoadOptions().mask(MaskPolicy::kIgnore) does not read it."
                  : ""));
      if (shape) {
        mismatches_.push_back({key, *shape, whole.sizes().vec()});
      }
      return;
    }
    has_adapter_ = has_adapter_ || has_merged_part(source);
    const auto* stored = stored_part(source);
    if (stored != nullptr && !stored->is_exact && !options_.dequantize()) {
      problems_.push_back(format_text(
          "form mismatch for {}: the file has its values as {}, and "
          "LoadOptions().dequantize(false) refuses to compute them.",
          key,
          stored->form));
      return;
    }
    const auto dtype = source.parts.front().tensor.scalar_type();
    if (c10::isComplexType(dtype) && !c10::isComplexType(dtype_of(target))) {
      problems_.push_back(format_text(
          "dtype mismatch for {}: copying complex numbers ({}) into real ones "
          "({}) would lose their imaginary part.",
          key,
          torch::toString(dtype),
          torch::toString(dtype_of(target))));
      return;
    }
    if (!can_convert(dtype, dtype_of(target))) {
      problems_.push_back(format_text(
          "dtype mismatch for {}: LibTorch cannot convert {} to {}.",
          key,
          torch::toString(dtype),
          torch::toString(dtype_of(target))));
      return;
    }
    if (is_mask && !are_causal_masks(source, file_.stored)) {
      problems_.push_back(format_text(
          "value mismatch for {}: the file's mask is not the causal mask, "
          "which the module applies. MaskPolicy::kIgnore does not read it.",
          key));
      return;
    }
    const auto [first, is_first] =
        firsts_.try_emplace(target.unsafeGetTensorImpl(), key, &source);
    if (!is_first &&
        !bits_of(source, dtype_of(target), file_.stored)
             .equal(bits_of(
                 *first->second.second, dtype_of(target), file_.stored))) {
      problems_.push_back(format_text(
          "value mismatch for {}: it is the same tensor of the module as {}, but "
          "the file has other values for it.",
          key,
          first->second.first));
      return;
    }
    auto file_keys = source.keys();
    plan_.keys.insert(plan_.keys.end(), file_keys.begin(), file_keys.end());
    for (const auto& copy : source.copies) {
      plan_.keys.push_back(copy.key);
    }
    const auto shard = shards_.find(key);
    plan_.assignments.push_back(
        {target,
         shard == shards_.end() ? source : part_of(source, *shard->second)});
    for (auto& file_key : file_keys) {
      file_key.insert(0, file_.start);
    }
    plan_.report.loaded.push_back(
        {key,
         target.sizes().vec(),
         dtype,
         dtype_of(target),
         std::move(file_keys),
         stored == nullptr ? "" : stored->form});
  }

  /// Adds problems for sources whose values the file stores in a form that is
  /// not read: integers of a quantized weight, under the weight's name.
  bool has_unreadable(const std::string& key, const Source& source) {
    bool found = false;
    const auto keys = source.keys();
    for (const auto& [name, reason] : file_.unreadable) {
      if (contains(keys, name)) {
        problems_.push_back(
            format_text("\"{}\" of the file, for {}, {}.", name, key, reason));
        unreadable_sources_.insert(name);
        found = true;
      }
    }
    return found;
  }

  /// Returns whether an adapter was added to a part.
  bool has_merged_part(const Source& source) const {
    return std::any_of(
        source.parts.begin(), source.parts.end(), [&](const Part& part) {
          const auto* stored = file_.stored.find(part.tensor);
          return stored != nullptr && stored->is_merged;
        });
  }

  /// Returns the stored form of the first part that has one; null if all are
  /// tensors.
  const StoredValues* stored_part(const Source& source) const {
    for (const auto& part : source.parts) {
      if (const auto* stored = file_.stored.find(part.tensor)) {
        return stored;
      }
    }
    return nullptr;
  }

  /// Returns the dtype that the target will have.
  torch::ScalarType dtype_of(const torch::Tensor& target) const {
    return options_.dtype() && target.is_floating_point()
        ? *options_.dtype()
        : target.scalar_type();
  }

  void add_keys(const char* what, const std::vector<std::string>& keys) {
    if (options_.strict() && !keys.empty()) {
      messages_.push_back(
          format_text("{} key(s) in state_dict: {}.", what, quoted_list(keys)));
    }
  }

  /// Adds messages: all, or the first ones and the number of others.
  void add_messages(const std::vector<std::string>& messages) {
    if (!messages.empty()) {
      messages_.push_back(list_text(messages, "\n\t"));
    }
  }

  void add_unreadable() {
    std::vector<std::string> texts;
    for (const auto& [key, reason] : file_.unreadable) {
      if (unreadable_sources_.count(key) > 0) {
        continue; // reported as the source of a tensor
      }
      if ((options_.strict() && !mapping_.leaves(key)) ||
          targets_.contains(key)) {
        texts.push_back(format_text("\"{}\" of the file {}.", key, reason));
      }
    }
    for (const auto& key : file_.others) {
      if (targets_.contains(key)) {
        texts.push_back(format_text(
            "\"{}\" of the file is no tensor; make it one in Python by "
            "torch.as_tensor().",
            key));
      }
    }
    add_messages(texts);
  }

  /// Reports objects that may contain tensors of the module.
  void add_foreign() {
    const auto& missing = plan_.report.missing;
    std::vector<std::string> texts;
    for (const auto& value : file_.foreign) {
      const bool is_wanted = std::any_of(
          missing.begin(), missing.end(), [&](const std::string& key) {
            const auto path = file_.start + key;
            return path == value.path ||
                starts_with(path, format_text("{}.", value.path));
          });
      if (is_wanted ||
          (options_.strict() && !missing.empty() && value.holds_tensors)) {
        texts.push_back(format_text("{}.", text_of(value)));
      }
    }
    add_messages(texts);
  }

  void throw_problems() {
    add_keys("Missing", plan_.report.missing);
    add_keys("Unexpected", plan_.report.unexpected);
    add_unreadable();
    add_foreign();
    add_messages(mapping_.problems);
    add_messages(problems_);
    if (messages_.empty()) {
      return;
    }
    add_messages(size_hints(mismatches_));
    if (options_.strict()) {
      add_messages(key_hints(
          {file_,
           targets_,
           mapping_,
           plan_.report.missing,
           plan_.report.loaded.empty()}));
    }
    throw_printable(format_text(
        "Error(s) in loading state_dict for {}:\n\t{}",
        class_name(module_),
        fmt::join(messages_, "\n\t")));
  }

  const torch::nn::Module& module_;
  const WeightFile& file_;
  const LoadOptions& options_;
  StateDict targets_;
  /// Targets with the shapes of whole tensors, where the module has a shard.
  StateDict wholes_;
  std::unordered_map<std::string, const WeightShard*> shards_;
  std::unordered_set<std::string> masks_;
  Mapping mapping_;
  /// Whether an adapter was added to one of the tensors.
  bool has_adapter_ = false;
  std::unordered_set<std::string> unreadable_sources_;
  /// For each tensor of the module the first of its names, with its source.
  std::unordered_map<
      const c10::TensorImpl*,
      std::pair<std::string, const Source*>>
      firsts_;
  Plan plan_;
  std::vector<std::string> problems_;
  std::vector<Mismatch> mismatches_;
  std::vector<std::string> messages_;
};

} // namespace

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

Plan make_plan(
    const torch::nn::Module& module,
    const WeightFile& file,
    const LoadOptions& options) {
  return Planner(module, file, options).make();
}

} // namespace torch_attention::weights
