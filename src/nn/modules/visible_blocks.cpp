#include <nn/modules/visible_blocks.h>

#include <check.h>
#include <kernels/plain.h>

#include <optional>

namespace torch_attention::detail {

namespace {

using FuncOptions = functional::ScaledDotProductAttentionFuncOptions;

/// Returns whether the blocks have an effect.
bool are_read(BlockScope scope, const FuncOptions& options) {
  return scope != BlockScope::kNone && options.causal();
}

/// Checks that ids are (B, T) for scores (B, ..., T, S), or (T) without a
/// batch.
void check_ids(
    const char* name,
    const torch::Tensor& ids,
    const std::vector<int64_t>& scores) {
  const bool batched = scores.size() > 2;
  const auto T = scores[scores.size() - 2];
  const auto expected = batched ? std::vector<int64_t>{scores.front(), T}
                                : std::vector<int64_t>{T};
  TORCH_ATTENTION_CHECK(
      ids.scalar_type() == torch::kLong &&
          ids.sizes() == torch::IntArrayRef(expected),
      "{}: expected int64 visible_blocks of shape {} = {}, but got {} of "
      "shape {}",
      name,
      batched ? "(B, T)" : "(T)",
      torch::IntArrayRef(expected),
      ids.scalar_type(),
      ids.sizes());
}

/// Returns the blocks of n positions, (B, n), -1 for those without a query.
torch::Tensor blocks_by_position(
    const torch::Tensor& ids,
    const torch::Tensor& first,
    int64_t n) {
  auto blocks = torch::full({ids.size(0), n}, -1, ids.options());
  blocks.scatter_(
      1, first.unsqueeze(1) + torch::arange(ids.size(1), ids.options()), ids);
  return blocks;
}

/// Returns the blocks of S keys, (B, S), -1 for keys that are not queries.
torch::Tensor blocks_of_keys(
    const torch::Tensor& ids,
    const torch::Tensor& first,
    int64_t S) {
  if (!first.defined()) {
    return ids;
  }
  const auto T = ids.size(1);
  // Padding queries may have indices beyond the keys.
  return blocks_by_position(ids, first, S + T).narrow(1, 0, S);
}

/// Returns the mask of keys after a query, or before its window if `window` is
/// not 0: bool (B, T, S).
torch::Tensor hidden_by_rule(
    const torch::Tensor& ids,
    const torch::Tensor& first,
    int64_t S,
    int64_t window) {
  auto queries = torch::arange(ids.size(1), ids.options()).unsqueeze(0);
  if (first.defined()) {
    queries = queries + first.unsqueeze(1);
  }
  const auto after = torch::arange(S, ids.options()) - queries.unsqueeze(-1);
  auto hidden = after.gt(0);
  if (window > 0) {
    hidden = hidden.bitwise_or(after.le(-window));
  }
  return hidden;
}

/// Returns the mask that hides what causal and, if it is not 0, the window
/// hide, except from tokens of the same block.
BlockMask mask_of_blocks(
    const torch::Tensor& ids,
    const torch::Tensor& first,
    int64_t S,
    int64_t window) {
  auto mod = MaskMod::causal();
  if (window > 0) {
    mod = mod & MaskMod::window(window);
  }
  const auto T = ids.size(1);
  auto options = BlockMaskOptions(T, S).batch_size(ids.size(0));
  if (first.defined()) {
    options.query_offsets(first);
  }
  const auto blocks =
      first.defined() ? blocks_by_position(ids, first, S + T) : ids;
  return {mod | MaskMod::documents(blocks), options};
}

} // namespace

void check_visible_blocks(
    const char* name,
    const torch::Tensor& ids,
    BlockScope scope,
    const std::vector<int64_t>& scores,
    const FuncOptions& options) {
  check_ids(name, ids, scores);
  TORCH_ATTENTION_CHECK(
      !are_read(scope, options) ||
          (!options.chunk() && !options.alibi_slopes().defined()),
      "{}: expected no visible_blocks beside {}",
      name,
      options.chunk() ? "chunk" : "alibi");
}

void set_visible_blocks(
    const char* name,
    const VisibleBlocks& blocks,
    BlockScope scope,
    const std::vector<int64_t>& scores,
    FuncOptions& options) {
  check_visible_blocks(name, blocks.ids, scope, scores, options);
  if (!are_read(scope, options)) {
    return;
  }
  // (B, T), or (1, T) without a batch.
  const auto ids = scores.size() > 2 ? blocks.ids : blocks.ids.unsqueeze(0);
  const auto S = scores.back();
  const auto first =
      blocks.first.defined() ? blocks.first.to(ids.device()) : blocks.first;
  const int64_t lifted =
      scope == BlockScope::kWindow ? options.window().value_or(0) : 0;
  options.causal(false);
  if (lifted > 0) {
    options.window(std::nullopt);
  } else if (options.window()) {
    // The mask hides later tokens, so this window is unlimited.
    options.window_after(S);
  }
  if (kernels::is_plain(ids) && !kernels::is_traced() && ids.numel() > 0 &&
      !options.block_mask().defined()) {
    options.block_mask(mask_of_blocks(ids, first, S, lifted));
    return;
  }
  const auto keys = blocks_of_keys(ids, first, S).unsqueeze(-2);
  const auto sees = ids.unsqueeze(-1).eq(keys).bitwise_and(keys.ge(0));
  auto hidden =
      hidden_by_rule(ids, first, S, lifted).bitwise_and(sees.bitwise_not());
  if (scores.size() == 4) {
    hidden = hidden.unsqueeze(1);
  } else if (scores.size() == 2) {
    hidden = hidden.squeeze(0);
  }
  options.mask(
      options.mask().defined() ? hidden.bitwise_or(options.mask()) : hidden);
}

} // namespace torch_attention::detail
