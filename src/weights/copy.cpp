#include <weights/copy.h>

#include <large_pages.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

namespace torch_attention::weights {

using namespace files;
using namespace layouts;

namespace {

/// A copy whose views are made already, so that nothing else can fail.
struct Copy {
  torch::Tensor to;
  /// The values; undefined for zeros.
  torch::Tensor from;
  /// The values as they are in the file, whose pages are released after the
  /// copy.
  torch::Tensor file_tensor;
};

/// Returns whether the copy would transpose. For that LibTorch allocates a
/// buffer, which may fail; copying between the transposed views needs none.
bool is_transposed(const torch::Tensor& from) {
  return from.dim() == 2 && from.stride(0) == 1 && from.stride(1) != 1;
}

/// Adds copies in blocks of rows, so that the pages of each block can be
/// released after it.
void add_blocks(
    std::vector<Copy>& copies,
    const torch::Tensor& to,
    const torch::Tensor& from) {
  constexpr size_t kBlock = size_t{16} << 20;
  if (from.dim() == 0 || from.nbytes() <= kBlock) {
    copies.push_back(
        is_transposed(from) ? Copy{to.t(), from.t(), from}
                            : Copy{to, from, from});
    return;
  }
  const auto rows = from.size(0);
  const auto blocks = static_cast<int64_t>(from.nbytes() / kBlock + 1);
  const auto step = std::max<int64_t>(1, rows / blocks);
  for (int64_t row = 0; row < rows; row += step) {
    const auto count = std::min(step, rows - row);
    const auto part = from.narrow(0, row, count);
    const auto place = to.narrow(0, row, count);
    copies.push_back(
        is_transposed(from) ? Copy{place.t(), part.t(), part}
                            : Copy{place, part, part});
  }
}

void add_copies(
    std::vector<Copy>& copies,
    const torch::Tensor& target,
    const Source& source,
    const StoredTensors& stored) {
  if (source.state == Source::State::kZeros) {
    copies.push_back({target.detach(), {}, {}});
    return;
  }
  int64_t begin = 0;
  for (const auto& part : source.parts) {
    const auto& from = part.tensor;
    stored.prepare(from);
    auto to = target.detach();
    if (source.parts.size() > 1) {
      const auto size = from.size(source.dimension);
      to = to.narrow(source.dimension, begin, size);
      begin += size;
    }
    add_blocks(copies, to, from);
  }
}

/// Puts copies from one quantized tensor after each other, so that its values
/// are computed once.
void sort_by_stored(std::vector<Copy>& copies, const WeightFile& file) {
  const auto address = [&](const Copy& copy) -> const void* {
    return copy.from.defined() && file.stored.find(copy.from) != nullptr
        ? copy.from.storage().data()
        : nullptr;
  };
  std::stable_sort(
      copies.begin(), copies.end(), [&](const Copy& a, const Copy& b) {
        return std::less<>()(address(a), address(b));
      });
}

void run(const std::vector<Copy>& copies, const WeightFile& file) {
  // The quantized tensor whose values are in memory: only one of them is.
  torch::Tensor filled;
  for (const auto& copy : copies) {
    if (!copy.from.defined()) {
      copy.to.zero_();
      continue;
    }
    if (file.stored.find(copy.from) != nullptr) {
      if (filled.defined() && !filled.is_alias_of(copy.from)) {
        file.stored.release(filled);
      }
      filled = copy.from;
      file.stored.fill(filled);
    }
    copy.to.copy_(copy.from);
    release(bytes_in_file(file, copy.file_tensor));
  }
  if (filled.defined()) {
    file.stored.release(filled);
  }
}

torch::TensorOptions wanted_options(
    const torch::Tensor& tensor,
    const LoadOptions& options) {
  auto wanted = tensor.options().requires_grad(false);
  if (options.device()) {
    wanted = wanted.device(*options.device());
  }
  if (options.dtype() && tensor.is_floating_point()) {
    wanted = wanted.dtype(*options.dtype());
  }
  return wanted;
}

/// A tensor of the module and its replacement.
struct Exchange {
  torch::Tensor old;
  torch::Tensor made;
};

} // namespace

void copy_all(
    torch::nn::Module& module,
    const std::vector<Assignment>& assignments,
    const LoadOptions& options,
    const WeightFile& file) {
  const torch::NoGradGuard no_grad;
  std::unordered_map<c10::TensorImpl*, const Source*> sources;
  for (const auto& assignment : assignments) {
    sources.emplace(
        assignment.target.unsafeGetTensorImpl(), &assignment.source);
  }
  std::vector<Copy> direct;
  std::vector<Copy> staged;
  std::vector<Exchange> exchanges;
  for (const auto& item : state_dict(module)) {
    const auto& tensor = item.value();
    const auto found = sources.find(tensor.unsafeGetTensorImpl());
    const auto* source = found == sources.end() ? nullptr : found->second;
    const auto wanted = wanted_options(tensor, options);
    const bool moves =
        wanted.device() != tensor.device() || wanted.dtype() != tensor.dtype();
    if (!moves && (source == nullptr || tensor.is_cpu())) {
      if (source != nullptr) {
        add_copies(direct, tensor, *source, file.stored);
      }
      continue;
    }
    auto made = at::empty_like(tensor, wanted);
    ask_for_large_pages(made);
    if (source != nullptr) {
      add_copies(staged, made, *source, file.stored);
    } else {
      staged.push_back({made, tensor.detach(), {}});
    }
    exchanges.push_back({tensor, std::move(made)});
  }
  if (!file.stored.empty()) {
    sort_by_stored(staged, file);
    sort_by_stored(direct, file);
  }
  run(staged, file);
  // Nothing fails from here on.
  run(direct, file);
  for (auto& [old, made] : exchanges) {
    old.set_data(made);
  }
}

} // namespace torch_attention::weights
