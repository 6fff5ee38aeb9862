#include <torch_attention/weights/read.h>

#include <error_message.h>
#include <format_text.h>
#include <weights/select.h>

#include <ATen/core/grad_mode.h>

#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace torch_attention {

namespace {

// Views whose rows overlap (`unfold`) have more elements than their memory.
constexpr size_t kMaxOverlap = 16;
constexpr size_t kFreeBytes = size_t{1} << 20;

/// The elements that differ in memory: dimensions that only repeat them
/// (`expand`) have the size 1. Throws where those that are left overlap so much
/// that a small file could ask for any memory.
torch::Tensor without_repeats(const torch::Tensor& tensor) {
  auto once = tensor;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) == 0 && tensor.size(i) > 1) {
      once = once.narrow(i, 0, 1);
    }
  }
  TORCH_CHECK(
      once.nbytes() <= kMaxOverlap * once.storage().nbytes() + kFreeBytes,
      format_text(
          "a tensor of shape ({}) and strides ({}) repeats its {} bytes; "
          "ReadOptions().mmap(true) leaves it as it is",
          fmt::join(tensor.sizes(), ", "),
          fmt::join(tensor.strides(), ", "),
          once.storage().nbytes()));
  return once.resolve_conj().resolve_neg();
}

/// Makes the tensors of a result from those of a file. What is one tensor in
/// the file, under several names, stays one.
class Reader {
 public:
  explicit Reader(const ReadOptions& options) : options_(options) {}

  torch::Tensor read(const torch::Tensor& in_file) {
    if (in_file.numel() == 0) {
      return converted(in_file);
    }
    auto& made = made_[{
        in_file.data_ptr(),
        in_file.sizes().vec(),
        in_file.strides().vec(),
        in_file.scalar_type(),
        in_file.is_conj(),
        in_file.is_neg()}];
    if (!made.defined()) {
      made = converted(in_file);
    }
    return made;
  }

 private:
  torch::Tensor converted(const torch::Tensor& in_file) const {
    const bool has_dtype = !options_.dtype() || !in_file.is_floating_point() ||
        in_file.scalar_type() == *options_.dtype();
    const bool stays = has_dtype && options_.device().is_cpu();
    if (stays && options_.mmap()) {
      return in_file;
    }
    const auto options =
        at::TensorOptions(options_.device())
            .dtype(has_dtype ? in_file.scalar_type() : *options_.dtype());
    return without_repeats(in_file)
        .to(options,
            /*non_blocking=*/false,
            /*copy=*/true,
            at::MemoryFormat::Contiguous)
        .expand(in_file.sizes());
  }

  using Identity = std::tuple<
      const void*,
      std::vector<int64_t>,
      std::vector<int64_t>,
      torch::ScalarType,
      bool,
      bool>;

  const ReadOptions& options_;
  std::map<Identity, torch::Tensor> made_;
};

StateDict read(const std::string& path, const ReadOptions& options) {
  TORCH_CHECK(
      !options.dtype() || c10::isFloatingType(*options.dtype()),
      "expected a floating-point dtype, but got ",
      torch::toString(options.dtype().value_or(torch::kFloat)));
  const auto file = read_below(path, options.prefix());
  for (const auto& [key, reason] : file.unreadable) {
    TORCH_CHECK(false, format_text("\"{}\" {}", key, reason));
  }
  if (options.check()) {
    file.check(file.tensors.keys());
  }
  if (options.mmap()) {
    for (const auto& bytes : file.mapped) {
      make_writable(bytes);
    }
  }
  Reader reader(options);
  StateDict result;
  result.reserve(file.tensors.size());
  for (const auto& item : file.tensors) {
    result.insert(item.key(), reader.read(item.value()));
  }
  return result;
}

} // namespace

StateDict read_weights(const std::string& path, const ReadOptions& options) {
  const torch::NoGradGuard no_grad;
  try {
    return read(path, options);
  } catch (const std::exception& error) {
    C10_THROW_ERROR(
        Error,
        format_text("read_weights(\"{}\"): {}", path, error_message(error)));
  }
}

} // namespace torch_attention
