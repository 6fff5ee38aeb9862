#include <torch_attention/weights/read.h>

#include <check.h>
#include <error_message.h>
#include <format_text.h>
#include <weights/files/overlap.h>
#include <weights/open_weights.h>
#include <weights/quantization_beside.h>
#include <weights/quantized/dequantize.h>
#include <weights/select.h>

#include <ATen/core/grad_mode.h>

#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace torch_attention {

using namespace weights;
using namespace weights::files;

namespace {

/// The number of times that each byte of a file may be copied.
constexpr uint64_t kMaxOverlap = 16;

/// Returns the elements without repetitions: dimensions that `expand` added or
/// enlarged get the size 1.
torch::Tensor without_repeats(const torch::Tensor& tensor) {
  auto once = tensor;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) == 0 && tensor.size(i) > 1) {
      once = once.narrow(i, 0, 1);
    }
  }
  return once;
}

/// Makes the tensors of the result. A tensor with several names in the file
/// remains one tensor.
class Reader {
 public:
  Reader(const ReadOptions& options, const WeightFile& file)
      : options_(options),
        stored_(file.stored),
        limit_(
            file.tensors,
            kMaxOverlap,
            "; ReadOptions().mmap(true) leaves them as they are") {}

  torch::Tensor read(const std::string& key, const torch::Tensor& in_file) {
    if (in_file.numel() == 0) {
      return converted(key, in_file);
    }
    auto& made = made_[{
        in_file.data_ptr(),
        in_file.sizes().vec(),
        in_file.strides().vec(),
        in_file.scalar_type(),
        in_file.is_conj(),
        in_file.is_neg()}];
    if (!made.defined()) {
      made = stored_.find(in_file) == nullptr ? converted(key, in_file)
                                              : computed(key, in_file);
    }
    return made;
  }

 private:
  /// Returns the values of a tensor that the file stores in another form. No
  /// other tensor has its memory.
  torch::Tensor computed(const std::string& key, const torch::Tensor& in_file) {
    stored_.fill(in_file);
    if (keeps_dtype(in_file) && options_.device().is_cpu()) {
      return in_file;
    }
    auto result = converted(key, in_file);
    stored_.release(in_file);
    return result;
  }

  torch::Tensor converted(
      const std::string& key,
      const torch::Tensor& in_file) {
    const bool has_dtype = keeps_dtype(in_file);
    const bool stays = has_dtype && options_.device().is_cpu();
    if (stays && options_.mmap()) {
      return in_file;
    }
    const auto once = without_repeats(in_file);
    limit_.count(key, once, once.numel());
    if (has_dtype && in_file.element_size() == 1) {
      // As bytes, since LibTorch 2.8 and 2.9 cannot copy float4.
      return copied(once.view(torch::kByte), torch::kByte)
          .view(in_file.scalar_type())
          .expand(in_file.sizes());
    }
    const auto dtype =
        has_dtype ? in_file.scalar_type() : options_.dtype().value();
    return copied(once.resolve_conj().resolve_neg(), dtype)
        .expand(in_file.sizes());
  }

  bool keeps_dtype(const torch::Tensor& in_file) const {
    return !options_.dtype() || !in_file.is_floating_point() ||
        in_file.scalar_type() == *options_.dtype();
  }

  torch::Tensor copied(const torch::Tensor& x, torch::ScalarType dtype) const {
    return x.to(
        at::TensorOptions(options_.device()).dtype(dtype),
        /*non_blocking=*/false,
        /*copy=*/true,
        at::MemoryFormat::Contiguous);
  }

  using Identity = std::tuple<
      const void*,
      std::vector<int64_t>,
      std::vector<int64_t>,
      torch::ScalarType,
      bool,
      bool>;

  const ReadOptions& options_;
  const StoredTensors& stored_;
  OverlapLimit limit_;
  std::map<Identity, torch::Tensor> made_;
};

/// Checks that no tensor is stored in a form that LibTorch does not have.
void check_are_tensors(const WeightFile& file) {
  for (const auto& item : file.tensors) {
    const auto* stored = file.stored.find(item.value());
    TORCH_ATTENTION_CHECK(
        stored == nullptr || stored->is_exact,
        "\"{}\" is stored as {}: ReadOptions().dequantize(true) computes its "
        "values",
        item.key(),
        stored->form);
  }
}

WeightFile open(const std::string& path, const ReadOptions& options) {
  TORCH_ATTENTION_CHECK(
      !options.dtype() || c10::isFloatingType(*options.dtype()),
      "expected a floating-point dtype, but got {}",
      torch::toString(options.dtype().value_or(torch::kFloat)));
  auto file = read_below(
      path,
      options.prefix(),
      {options.dequantize() ? Quantized::kJoined : Quantized::kAsStored,
       options.adapter()});
  for (const auto& [key, reason] : file.unreadable) {
    TORCH_ATTENTION_CHECK(false, "\"{}\" {}", key, reason);
  }
  for (const auto& value : file.foreign) {
    TORCH_CHECK(
        !value.holds_tensors || !starts_with(value.path, file.start),
        text_of(value));
  }
  if (!options.dequantize()) {
    check_are_tensors(file);
    if (options.dtype()) {
      check_not_quantized(file, "dtype (--dtype)");
    }
  }
  if (options.check()) {
    file.check(file.tensors.keys());
  }
  if (options.mmap()) {
    for (const auto& bytes : file.mapped) {
      make_writable(bytes);
    }
  }
  return file;
}

StateDict read(const WeightFile& file, const ReadOptions& options) {
  Reader reader(options, file);
  StateDict result;
  result.reserve(file.tensors.size());
  for (const auto& item : file.tensors) {
    result.insert(item.key(), reader.read(item.key(), item.value()));
  }
  return result;
}

/// Returns what a function returns. Its errors get the name of `read_weights`.
template <typename Function>
auto named_errors(const std::string& path, const Function& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    throw_printable(format_text(
        "read_weights(\"{}\"): {}", escaped(path), error_message(error)));
  }
}

} // namespace

namespace weights {

WeightFile open_weights(const std::string& path, const ReadOptions& options) {
  return named_errors(path, [&] { return open(path, options); });
}

void check_not_quantized(const WeightFile& file, const std::string& option) {
  if (!quantized::may_be_quantized(file)) {
    return;
  }
  const auto method = quantization_beside(file.path);
  const auto name =
      quantized::quantized_weight(file, method ? &*method : nullptr);
  TORCH_ATTENTION_CHECK(
      name.empty(),
      "\"{}\" is stored quantized, and {} would change the integers and scales "
      "that its values are computed from: give dequantize(true) "
      "(--dequantize), too",
      name,
      option);
}

} // namespace weights

StateDict read_weights(const std::string& path, const ReadOptions& options) {
  const torch::NoGradGuard no_grad;
  return named_errors(path, [&] { return read(open(path, options), options); });
}

} // namespace torch_attention
