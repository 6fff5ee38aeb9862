#include <nn/block_store.h>

#include <check.h>
#include <kernels/cache_rows.h>
#include <nn/cache_checks.h>

#include <algorithm>
#include <utility>

namespace torch_attention::detail {

BlockStore::BlockStore(const BlockCacheOptions& options) : pool_(options) {}

BlockSequence& BlockStore::at(int64_t sequence) {
  return const_cast<BlockSequence&>(std::as_const(*this).at(sequence));
}

const BlockSequence& BlockStore::at(int64_t sequence) const {
  const auto found = sequences_.find(sequence);
  TORCH_ATTENTION_CHECK(
      found != sequences_.end(),
      "BlockCache: expected one of the {} sequences of the cache, but got {}, "
      "which {}",
      num_sequences(),
      sequence,
      sequence >= 0 && sequence < next_ ? "was dropped" : "was never admitted");
  return found->second;
}

int64_t BlockStore::blocks_for(int64_t length) const {
  const auto size = options().block_size();
  return length / size + (length % size > 0 ? 1 : 0);
}

int64_t BlockStore::admit() {
  sequences_.emplace(next_, BlockSequence());
  return next_++;
}

int64_t BlockStore::fork(int64_t sequence) {
  auto copy = at(sequence);
  copy.num_holds = 0;
  const auto& added = sequences_.emplace(next_, std::move(copy)).first->second;
  for (const auto block : added.blocks) {
    if (block != kNoBlock) {
      pool_.share(block);
    }
  }
  return next_++;
}

void BlockStore::drop(int64_t sequence) {
  for (const auto block : at(sequence).blocks) {
    if (block != kNoBlock) {
      pool_.release(block);
    }
  }
  sequences_.erase(sequence);
}

void BlockStore::truncate(int64_t sequence, int64_t length) {
  auto& from = at(sequence);
  TORCH_ATTENTION_CHECK(
      length >= 0,
      "BlockCache: expected to truncate to 0 tokens or more, but got {}",
      length);
  if (length >= from.length) {
    return;
  }
  checks::check_truncation(
      kBlockCache, options(), sequence, num_freed_tokens(sequence), length);
  const auto kept = static_cast<size_t>(blocks_for(length));
  while (from.blocks.size() > kept) {
    if (from.blocks.back() != kNoBlock) {
      pool_.release(from.blocks.back());
    }
    from.blocks.pop_back();
  }
  from.length = length;
  from.num_freed = length == 0 ? 0 : from.num_freed;
}

/// Frees the blocks that no new token will read, even if `truncate` removes as
/// many tokens as a block has.
void BlockStore::free_unneeded(BlockSequence& sequence) noexcept {
  if (sequence.num_holds > 0) {
    return;
  }
  const auto size = options().block_size();
  const auto needed = checks::first_needed(
      options(), std::max<int64_t>(0, sequence.length - size));
  for (auto& next = sequence.num_freed; (next + 1) * size <= needed; ++next) {
    pool_.release(
        std::exchange(sequence.blocks[static_cast<size_t>(next)], kNoBlock));
  }
}

void BlockStore::shrink() {
  pool_.shrink();
}

int64_t BlockStore::length(int64_t sequence) const {
  return at(sequence).length;
}

int64_t BlockStore::peak_length(int64_t sequence) const {
  return at(sequence).peak_length;
}

int64_t BlockStore::num_freed_tokens(int64_t sequence) const {
  return at(sequence).num_freed * options().block_size();
}

void BlockStore::check_batch(torch::IntArrayRef sequences) const {
  TORCH_CHECK(
      !sequences.empty(),
      "BlockCache: expected a batch of at least one sequence, but got none");
  auto sorted = sequences.vec();
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  TORCH_ATTENTION_CHECK(
      twice == sorted.end(),
      "BlockCache: expected different sequences in a batch, but got {} twice; "
      "fork it",
      *twice);
  for (const auto sequence : sequences) {
    at(sequence);
  }
}

std::vector<BlockBefore> BlockStore::append(
    torch::IntArrayRef sequences,
    const torch::Tensor& keys,
    const torch::Tensor& values,
    torch::IntArrayRef counts) {
  const auto size = options().block_size();
  // So copying them to blocks on the CPU allocates nothing.
  const auto as_stored = [&](const torch::Tensor& x) {
    return options().dtype() == torch::kInt8
        ? kernels::quantized(x)
        : kernels::contiguous_rows(x, options().dtype());
  };
  const auto new_keys = as_stored(keys);
  const auto new_values =
      options().values_in_keys() ? values : as_stored(values);
  std::vector<BlockBefore> appended;
  int64_t needed = 0;
  int64_t longest = 0;
  for (size_t b = 0; b < sequences.size(); ++b) {
    auto& to = at(sequences[b]);
    free_unneeded(to);
    BlockBefore before{&to, to.length, to.peak_length, to.blocks.size()};
    if (counts[b] > 0 && to.length % size != 0 &&
        pool_.is_shared(to.blocks.back())) {
      before.replaced = to.blocks.back();
      ++needed;
    }
    const auto num_blocks = blocks_for(to.length + counts[b]);
    needed += num_blocks - static_cast<int64_t>(before.num_blocks);
    longest = std::max(longest, to.length + counts[b]);
    to.blocks.reserve(static_cast<size_t>(num_blocks));
    appended.push_back(before);
  }
  auto taken = pool_.take(needed);
  // Sequences get their blocks and lengths, so that `undo` can take them back.
  auto next = taken.begin();
  for (size_t b = 0; b < sequences.size(); ++b) {
    auto& before = appended[b];
    auto& to = *before.sequence;
    if (before.replaced != kNoBlock) {
      to.blocks.back() = *next++;
    }
    to.length += counts[b];
    while (static_cast<int64_t>(to.blocks.size()) < blocks_for(to.length)) {
      to.blocks.push_back(*next++);
    }
    to.peak_length =
        std::max(before.length == 0 ? 0 : before.peak_length, longest);
  }
  try {
    copy_shared_rows(appended);
    write(appended, new_keys, new_values, counts);
  } catch (...) {
    undo(appended);
    throw;
  }
  return appended;
}

std::vector<BlockBefore> BlockStore::hold(torch::IntArrayRef sequences) {
  std::vector<BlockBefore> held;
  held.reserve(sequences.size());
  for (const auto sequence : sequences) {
    auto& to = at(sequence);
    free_unneeded(to);
    held.push_back({&to, to.length, to.peak_length, to.blocks.size()});
  }
  // An append replaces a last block that is shared and not full: one more user
  // keeps it alive, and shared.
  for (auto& before : held) {
    if (before.length % options().block_size() != 0 &&
        pool_.is_shared(before.sequence->blocks.back())) {
      before.replaced = before.sequence->blocks.back();
    }
  }
  for (auto& before : held) {
    if (before.replaced != kNoBlock) {
      pool_.share(before.replaced);
    }
    before.is_held = true;
    ++before.sequence->num_holds;
  }
  return held;
}

void BlockStore::commit(const std::vector<BlockBefore>& appended) noexcept {
  for (const auto& before : appended) {
    if (before.replaced != kNoBlock) {
      pool_.release(before.replaced);
    }
    before.sequence->num_holds -= before.is_held ? 1 : 0;
  }
}

void BlockStore::undo(const std::vector<BlockBefore>& appended) noexcept {
  for (const auto& before : appended) {
    auto& to = *before.sequence;
    while (to.blocks.size() > before.num_blocks) {
      pool_.release(to.blocks.back());
      to.blocks.pop_back();
    }
    if (before.replaced != kNoBlock) {
      pool_.release(to.blocks.back());
      to.blocks.back() = before.replaced;
    }
    to.length = before.length;
    to.peak_length = before.peak_length;
    to.num_holds -= before.is_held ? 1 : 0;
  }
}

/// Copies the rows of blocks that other sequences share to the blocks that have
/// replaced them.
void BlockStore::copy_shared_rows(const std::vector<BlockBefore>& appended) {
  for (const auto& before : appended) {
    if (before.replaced < 0) {
      continue;
    }
    const auto n = before.length % options().block_size();
    const auto copy = before.sequence->blocks[before.num_blocks - 1];
    pool_.keys(copy).narrow(1, 0, n).copy_(
        pool_.keys(before.replaced).narrow(1, 0, n));
    if (!options().values_in_keys()) {
      pool_.values(copy).narrow(1, 0, n).copy_(
          pool_.values(before.replaced).narrow(1, 0, n));
    }
  }
}

/// Writes the new tokens after those that the sequences had before.
void BlockStore::write(
    const std::vector<BlockBefore>& appended,
    const torch::Tensor& keys,
    const torch::Tensor& values,
    torch::IntArrayRef counts) {
  const auto size = options().block_size();
  // Writes `rows` to the blocks that begin at `data_of(block)` or, on devices,
  // are `tensor_of(block)`.
  const auto write_part = [&](const torch::Tensor& rows,
                              std::byte* (BlockPool::*data_of)(int64_t) const,
                              torch::Tensor (BlockPool::*tensor_of)(int64_t)
                                  const) {
    if (options().device().is_cpu() && kernels::can_copy_memory(rows)) {
      const auto row_bytes =
          rows.size(3) * static_cast<int64_t>(rows.element_size());
      kernels::write_rows_to_memory(
          rows, counts, [&](int64_t b, int64_t g, int64_t t) {
            const auto& before = appended[static_cast<size_t>(b)];
            const auto token = before.length + t;
            const auto block =
                before.sequence->blocks[static_cast<size_t>(token / size)];
            return (pool_.*data_of)(block) +
                (g * size + token % size) * row_bytes;
          });
      return;
    }
    for (size_t b = 0; b < appended.size(); ++b) {
      const auto& before = appended[b];
      for (int64_t t = 0; t < counts[b];) {
        const auto token = before.length + t;
        const auto n = std::min(size - token % size, counts[b] - t);
        const auto block =
            before.sequence->blocks[static_cast<size_t>(token / size)];
        (pool_.*tensor_of)(block)
            .narrow(1, token % size, n)
            .copy_(rows[static_cast<int64_t>(b)].narrow(1, t, n));
        t += n;
      }
    }
  };
  write_part(keys, &BlockPool::key_data, &BlockPool::keys);
  if (!options().values_in_keys()) {
    write_part(values, &BlockPool::value_data, &BlockPool::values);
  }
}

int64_t BlockStore::most_tokens(torch::IntArrayRef sequences) const {
  int64_t most = 0;
  for (const auto sequence : sequences) {
    most = std::max(most, length(sequence));
  }
  return most;
}

kernels::KeyBlocks BlockStore::blocks_of(torch::IntArrayRef sequences) const {
  kernels::KeyBlocks blocks;
  blocks.size = options().block_size();
  blocks.row = blocks_for(most_tokens(sequences));
  const auto n = sequences.size() * static_cast<size_t>(blocks.row);
  blocks.keys.reserve(n);
  blocks.values.reserve(n);
  const bool has_values = !options().values_in_keys();
  blocks.key_token = checks::stored_key_size(options());
  blocks.value_token =
      has_values ? checks::stored_value_size(options()) : blocks.key_token;
  for (const auto block : padded_blocks(sequences)) {
    const void* keys = block == kNoBlock ? nullptr : pool_.key_data(block);
    const void* values =
        block == kNoBlock || !has_values ? keys : pool_.value_data(block);
    blocks.keys.push_back(keys);
    blocks.values.push_back(values);
  }
  return blocks;
}

/// Returns the blocks of each sequence, padded by kNoBlock to those of the
/// longest: (B * n).
std::vector<int64_t> BlockStore::padded_blocks(
    torch::IntArrayRef sequences) const {
  const auto n = static_cast<size_t>(blocks_for(most_tokens(sequences)));
  std::vector<int64_t> all;
  for (const auto sequence : sequences) {
    const auto& blocks = at(sequence).blocks;
    all.insert(all.end(), blocks.begin(), blocks.end());
    all.insert(all.end(), n - blocks.size(), kNoBlock);
  }
  return all;
}

torch::Tensor BlockStore::gather_keys(
    torch::IntArrayRef sequences,
    torch::Dtype int8_as) const {
  const auto rows = stored_keys(sequences);
  return options().dtype() == torch::kInt8
      ? kernels::dequantized(rows, options().head_dim(), int8_as)
      : rows;
}

torch::Tensor BlockStore::gather_values(
    torch::IntArrayRef sequences,
    torch::Dtype int8_as) const {
  const auto size = checks::value_dim(options());
  const auto B = static_cast<int64_t>(sequences.size());
  const auto rows = options().values_in_keys()
      ? stored_keys(sequences)
      : used_rows(pool_.gather_values(padded_blocks(sequences), B), sequences);
  return options().dtype() == torch::kInt8
      ? kernels::dequantized(rows, size, int8_as)
      : rows.slice(-1, 0, size);
}

/// Returns a copy of the keys of the sequences, as they are stored.
torch::Tensor BlockStore::stored_keys(torch::IntArrayRef sequences) const {
  const auto B = static_cast<int64_t>(sequences.size());
  return used_rows(pool_.gather_keys(padded_blocks(sequences), B), sequences);
}

/// Cuts a copy of rows, (B, G, n, D), to the tokens of the longest sequence,
/// and makes 0 of those that others do not have: a block may have held NaN,
/// which attention of other devices multiplies by 0.
torch::Tensor BlockStore::used_rows(
    const torch::Tensor& rows,
    torch::IntArrayRef sequences) const {
  const auto used = rows.narrow(2, 0, most_tokens(sequences));
  for (size_t b = 0; b < sequences.size(); ++b) {
    used.select(0, static_cast<int64_t>(b))
        .slice(1, length(sequences[b]))
        .zero_();
  }
  return used;
}

} // namespace torch_attention::detail
