#include <nn/modules/decode.h>

#include <nn/checks.h>
#include <nn/modules/visible_blocks.h>

#include <c10/util/Exception.h>

#include <algorithm>

namespace torch_attention::detail {

namespace {

bool all_are(const torch::Tensor& counts, int64_t count) {
  const auto* begin = counts.const_data_ptr<int64_t>();
  return std::all_of(begin, begin + counts.numel(), [&](int64_t each) {
    return each == count;
  });
}

} // namespace

NewTokens new_tokens(
    const char* name,
    const torch::Tensor& x,
    const KVCache& cache,
    const DecodeOptions& call,
    int64_t context_length) {
  const auto B = x.size(0);
  const auto T = x.size(1);
  NewTokens tokens;
  tokens.counts =
      checks::to_counts(name, "new_lengths", call.new_lengths(), B, T);
  tokens.before = cache.lengths();
  for (int64_t b = 0; b < B; ++b) {
    const auto length = tokens.before.const_data_ptr<int64_t>()[b];
    const auto count = tokens.counts.defined()
        ? tokens.counts.const_data_ptr<int64_t>()[b]
        : T;
    TORCH_CHECK(
        count <= context_length - length,
        name,
        ": expected at most ",
        context_length,
        " tokens (context_length), but got ",
        count,
        " new ones for sequence ",
        b,
        " of the cache, which has ",
        length,
        "; the cache is unchanged");
    tokens.most_before = std::max(tokens.most_before, length);
    tokens.most_after = std::max(tokens.most_after, length + count);
  }
  if (call.left_padded() && tokens.counts.defined() &&
      !all_are(tokens.counts, T)) {
    tokens.padding = T - tokens.counts;
  }
  return tokens;
}

bool checked_rotation(
    const char* name,
    const RotaryOptions& rotary,
    const NewTokens& tokens,
    bool was_long) {
  if (rotary.scaling() != RotaryScaling::kLongRope) {
    return false;
  }
  const auto original = rotary.original_context_length().value_or(0);
  const bool is_long = tokens.most_after > original;
  TORCH_CHECK(
      tokens.most_before == 0 || was_long == is_long,
      name,
      ": expected texts that stay ",
      was_long ? "beyond" : "within",
      " original_context_length = ",
      original,
      " of rotary scaling longrope, or an empty cache, but got one of ",
      tokens.most_before,
      " tokens that grows to ",
      tokens.most_after,
      ": on the other side of it all keys are rotated otherwise; reset the cache "
      "and decode the whole text again");
  return is_long;
}

torch::Tensor moved_tokens(const torch::Tensor& x, const torch::Tensor& by) {
  const auto T = x.size(1);
  const auto places =
      (torch::arange(T, torch::kLong) + by.unsqueeze(1)).remainder(T);
  return x.gather(
      1, places.to(x.device()).unsqueeze(-1).expand({-1, -1, x.size(2)}));
}

void set_rows_of_cache(
    const KVCache& cache,
    const torch::Tensor& first,
    int64_t T,
    functional::ScaledDotProductAttentionFuncOptions& options) {
  const auto S = cache.keys().size(2);
  const auto starts = cache.starts();
  const auto rows = cache.lengths() - starts;
  const auto offsets = first - starts;
  if (!all_are(rows, S) || !all_are(offsets, S - T)) {
    options.key_lengths(rows).query_offsets(offsets);
  }
}

void set_blocks_of_decode(
    const char* name,
    const DecodeOptions& call,
    const KVCache& cache,
    const NewTokens& tokens,
    const CallSizes& sizes,
    BlockScope scope,
    functional::ScaledDotProductAttentionFuncOptions& options) {
  if (!call.visible_blocks().defined()) {
    return;
  }
  // The first head's sizes are those of all.
  const std::vector<int64_t> scores{sizes.B, 1, sizes.T, cache.keys().size(2)};
  auto blocks =
      VisibleBlocks{call.visible_blocks(), tokens.before - cache.starts()};
  if (tokens.padding.defined() && blocks.ids.dim() == 2 &&
      blocks.ids.size(1) == sizes.T) {
    blocks.ids =
        moved_tokens(blocks.ids.unsqueeze(-1), tokens.padding).squeeze(-1);
  }
  set_visible_blocks(name, blocks, scope, scores, options);
}

void set_scores_of_call(
    const char* name,
    const DecodeOptions& call,
    const KVCache& cache,
    int64_t T,
    int64_t num_heads,
    functional::ScaledDotProductAttentionFuncOptions& options) {
  if (!call.bias().defined() && !call.scores()) {
    return;
  }
  TORCH_CHECK(
      !cache.options().window() && !cache.options().chunk() &&
          !call.left_padded(),
      name,
      ": expected ",
      call.bias().defined() ? "a bias" : "a function `scores`",
      " beside a cache that keeps all tokens, and tokens that are not "
      "left_padded");
  // Those of all processes, if several share the tokens.
  const auto S = cache.lengths().max().item<int64_t>();
  set_call(
      name,
      ForwardOptions().bias(call.bias()).scores(call.scores()),
      {cache.options().batch_size(), num_heads, T, S},
      options);
}

} // namespace torch_attention::detail
