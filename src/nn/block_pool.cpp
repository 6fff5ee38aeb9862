#include <nn/block_pool.h>

#include <check.h>
#include <kernels/attention.h>
#include <large_pages.h>
#include <nn/cache_checks.h>
#include <nn/checks.h>

#include <c10/core/InferenceMode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace torch_attention::detail {

namespace {

constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max();

/// The bytes of a slab, if a block has fewer.
constexpr int64_t kSlabBytes = int64_t{1} << 24;

/// Returns an uninitialised tensor. If it fills large pages on the CPU, it
/// begins with one: a slab has few of them.
torch::Tensor empty_slab(
    torch::IntArrayRef sizes,
    const torch::TensorOptions& options) {
  const auto n = c10::multiply_integers(sizes);
  const auto size = static_cast<int64_t>(options.dtype().itemsize());
  if (!options.device().is_cpu() || n * size < kLargePageBytes) {
    return at::empty(sizes, options);
  }
  const auto all = at::empty({n + kLargePageBytes / size}, options);
  const auto skipped = bytes_to_large_page(all.const_data_ptr());
  const auto slab = all.narrow(0, skipped / size, n).view(sizes);
  ask_for_large_pages(slab);
  return slab;
}

/// Returns the number of bytes of `sizes` elements, at most kMostBytes.
int64_t bytes_of(std::initializer_list<int64_t> sizes, torch::Dtype dtype) {
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const auto size : sizes) {
    bytes = bytes > kMostBytes / size ? kMostBytes : bytes * size;
  }
  return bytes;
}

void check_block_options(const BlockCacheOptions& options) {
  checks::check_sizes_of_rows(kBlockCache, options);
  checks::check_positive(kBlockCache, "block_size", options.block_size());
  checks::check_positive(
      kBlockCache, "max_blocks", options.max_blocks().value_or(kMostBytes));
  TORCH_ATTENTION_CHECK(
      options.block_size() % kernels::kBlockTokens == 0,
      "BlockCache: expected a block_size that is a multiple of {}, but got {}",
      kernels::kBlockTokens,
      options.block_size());
  checks::check_kept(kBlockCache, options);
  checks::check_cache_dtype(kBlockCache, options.dtype());
}

} // namespace

BlockPool::BlockPool(const BlockCacheOptions& options) : options_(options) {
  check_block_options(options_);
  constexpr int64_t kMostAddresses = int64_t{1} << 47;
  const auto G = options_.num_kv_heads();
  const auto size = options_.block_size();
  key_bytes_ =
      bytes_of({G, size, checks::stored_key_size(options_)}, options_.dtype());
  value_bytes_ = options_.values_in_keys()
      ? 0
      : bytes_of(
            {G, size, checks::stored_value_size(options_)}, options_.dtype());
  TORCH_ATTENTION_CHECK(
      key_bytes_ <= kMostAddresses && value_bytes_ <= kMostAddresses,
      "BlockCache: expected sizes of which a block fits into memory, but got "
      "num_kv_heads = {}, head_dim = {}, value_dim = {} and block_size = {}",
      G,
      options_.head_dim(),
      checks::value_dim(options_),
      size);
  blocks_per_slab_ =
      std::max<int64_t>(1, kSlabBytes / (key_bytes_ + value_bytes_));
  const c10::InferenceMode normal_tensors(false);
  const auto tensor =
      torch::device(options_.device())
          .dtype(
              options_.dtype() == torch::kInt8 ? torch::kFloat
                                               : options_.dtype());
  key_row_ = at::zeros({1, 1, 1, options_.head_dim()}, tensor);
  value_row_ = at::zeros({1, 1, 1, checks::value_dim(options_)}, tensor);
  options_.device(key_row_.device());
}

int64_t BlockPool::num_free() const {
  return options_.max_blocks() ? *options_.max_blocks() - num_used_
                               : kMostBytes;
}

size_t BlockPool::nbytes() const {
  return static_cast<size_t>(num_allocated_ * (key_bytes_ + value_bytes_));
}

BlockPool::Slab BlockPool::make_slab(int64_t num_blocks) const {
  const c10::InferenceMode normal_tensors(false);
  const auto make = [&](int64_t row) {
    return empty_slab(
        {num_blocks, options_.num_kv_heads(), options_.block_size(), row},
        torch::device(options_.device()).dtype(options_.dtype()));
  };
  const auto data = [](const torch::Tensor& x) {
    return static_cast<std::byte*>(x.mutable_data_ptr());
  };
  Slab slab;
  slab.num_blocks = num_blocks;
  slab.keys = make(checks::stored_key_size(options_));
  slab.key_data = data(slab.keys);
  if (!options_.values_in_keys()) {
    slab.values = make(checks::stored_value_size(options_));
    slab.value_data = data(slab.values);
  }
  return slab;
}

/// Allocates slabs of at least `num_blocks` blocks, as far as `max_blocks`
/// allows whole ones.
void BlockPool::add_slabs(int64_t num_blocks) {
  std::vector<Slab> made;
  int64_t num_made = 0;
  while (num_made < num_blocks) {
    const auto most =
        options_.max_blocks().value_or(kMostBytes) - num_allocated_ - num_made;
    made.push_back(make_slab(std::min(blocks_per_slab_, most)));
    num_made += made.back().num_blocks;
  }
  const auto most_slabs = slabs_.size() + made.size();
  const auto most_blocks = most_slabs * static_cast<size_t>(blocks_per_slab_);
  slabs_.reserve(most_slabs);
  free_.reserve(most_blocks);
  uses_.resize(most_blocks, 0);
  // Nothing throws from here on.
  for (auto& slab : made) {
    const auto n = slab.num_blocks;
    auto place = std::find_if(slabs_.begin(), slabs_.end(), [](const Slab& x) {
      return x.num_blocks == 0;
    });
    if (place == slabs_.end()) {
      place = slabs_.emplace(place);
    }
    *place = std::move(slab);
    const auto first = (place - slabs_.begin()) * blocks_per_slab_;
    for (auto i = n; i > 0; --i) {
      free_.push_back(first + i - 1);
    }
  }
  num_allocated_ += num_made;
}

std::vector<int64_t> BlockPool::take(int64_t count) {
  TORCH_ATTENTION_CHECK(
      count <= num_free(),
      "BlockCache: expected to need at most the {} free blocks of max_blocks = "
      "{}, but got tokens that need {}; the cache is unchanged",
      num_free(),
      options_.max_blocks().value_or(kMostBytes),
      count);
  std::vector<int64_t> taken;
  taken.reserve(static_cast<size_t>(count));
  const auto num_left = static_cast<int64_t>(free_.size());
  if (count > num_left) {
    add_slabs(count - num_left);
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto block = free_.back();
    free_.pop_back();
    uses_[static_cast<size_t>(block)] = 1;
    ++slabs_[static_cast<size_t>(block / blocks_per_slab_)].num_used;
    taken.push_back(block);
  }
  num_used_ += count;
  return taken;
}

void BlockPool::share(int64_t block) noexcept {
  ++uses_[static_cast<size_t>(block)];
}

void BlockPool::release(int64_t block) noexcept {
  if (--uses_[static_cast<size_t>(block)] > 0) {
    return;
  }
  // There is room for all blocks.
  free_.push_back(block);
  --slabs_[static_cast<size_t>(block / blocks_per_slab_)].num_used;
  --num_used_;
}

void BlockPool::shrink() {
  const auto is_unused = [&](int64_t block) {
    return slab_of(block).num_used == 0;
  };
  free_.erase(
      std::remove_if(free_.begin(), free_.end(), is_unused), free_.end());
  for (auto& slab : slabs_) {
    if (slab.num_used == 0) {
      num_allocated_ -= slab.num_blocks;
      slab = Slab();
    }
  }
}

const BlockPool::Slab& BlockPool::slab_of(int64_t block) const {
  return slabs_[static_cast<size_t>(block / blocks_per_slab_)];
}

torch::Tensor BlockPool::keys(int64_t block) const {
  return slab_of(block).keys.select(0, block % blocks_per_slab_);
}

torch::Tensor BlockPool::values(int64_t block) const {
  return slab_of(block).values.select(0, block % blocks_per_slab_);
}

std::byte* BlockPool::key_data(int64_t block) const {
  return slab_of(block).key_data + block % blocks_per_slab_ * key_bytes_;
}

std::byte* BlockPool::value_data(int64_t block) const {
  return slab_of(block).value_data + block % blocks_per_slab_ * value_bytes_;
}

torch::Tensor BlockPool::gather_keys(torch::IntArrayRef blocks, int64_t B)
    const {
  return gather(blocks, B, &Slab::keys, checks::stored_key_size(options_));
}

torch::Tensor BlockPool::gather_values(torch::IntArrayRef blocks, int64_t B)
    const {
  return gather(blocks, B, &Slab::values, checks::stored_value_size(options_));
}

torch::Tensor BlockPool::gather(
    torch::IntArrayRef blocks,
    int64_t B,
    torch::Tensor Slab::*part,
    int64_t size) const {
  const auto G = options_.num_kv_heads();
  const auto rows = options_.block_size();
  const auto n = static_cast<int64_t>(blocks.size());
  const auto all =
      at::zeros({n, G, rows, size}, key_row_.options().dtype(options_.dtype()));
  for (size_t i = 0; i < slabs_.size(); ++i) {
    std::vector<int64_t> from;
    std::vector<int64_t> to;
    for (int64_t j = 0; j < n; ++j) {
      const auto block = blocks[static_cast<size_t>(j)];
      if (block >= 0 && block / blocks_per_slab_ == static_cast<int64_t>(i)) {
        from.push_back(block % blocks_per_slab_);
        to.push_back(j);
      }
    }
    if (!from.empty()) {
      const auto index = [&](const std::vector<int64_t>& numbers) {
        return torch::tensor(numbers, torch::kLong).to(all.device());
      };
      all.index_copy_(
          0, index(to), (slabs_[i].*part).index_select(0, index(from)));
    }
  }
  // (B, n, G, rows, D) -> (B, G, n * rows, D)
  return all.view({B, n / B, G, rows, size})
      .transpose(1, 2)
      .reshape({B, G, n / B * rows, size});
}

} // namespace torch_attention::detail
