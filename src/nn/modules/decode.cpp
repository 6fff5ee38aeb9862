#include <nn/modules/decode.h>

#include <check.h>
#include <nn/checks.h>
#include <nn/modules/visible_blocks.h>

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace torch_attention::detail {

namespace {

bool all_are(const torch::Tensor& counts, int64_t count) {
  const auto* begin = counts.const_data_ptr<int64_t>();
  return std::all_of(begin, begin + counts.numel(), [&](int64_t each) {
    return each == count;
  });
}

/// Rotates the tokens of each sequence b of x (B, T, C) by `by[b]` positions to
/// the front.
torch::Tensor shifted(const torch::Tensor& x, const torch::Tensor& by) {
  const auto T = x.size(1);
  const auto from =
      (torch::arange(T, torch::kLong) + by.unsqueeze(1)).remainder(T);
  return x.gather(
      1, from.to(x.device()).unsqueeze(-1).expand({-1, -1, x.size(2)}));
}

} // namespace

NewTokens new_tokens(
    const char* name,
    const torch::Tensor& x,
    const CacheView& cache,
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
    TORCH_ATTENTION_CHECK(
        count <= context_length - length,
        "{}: expected at most {} tokens (context_length), but got {} new "
        "ones for sequence {} of the cache, which has {}; the cache is "
        "unchanged",
        name,
        context_length,
        count,
        b,
        length);
    tokens.most_before = std::max(tokens.most_before, length);
    tokens.most_after = std::max(tokens.most_after, length + count);
  }
  if (call.left_padded() && tokens.counts.defined() &&
      !all_are(tokens.counts, T)) {
    tokens.padding = T - tokens.counts;
  }
  return tokens;
}

std::string describe_decode(
    const CacheView& cache,
    const DecodeOptions& call,
    const NewTokens& tokens) {
  return c10::str(
      " to ",
      cache.options().dtype(),
      text_of_counts(" of lengths ", tokens.before),
      call.left_padded() ? ", left_padded" : "",
      text_of_counts(", new_lengths ", tokens.counts),
      text_of("bias", call.bias()),
      text_of("rotary_cos", call.rotary_cos()),
      text_of("rotary_sin", call.rotary_sin()));
}

void check_rotates_alike(
    const char* name,
    const RotaryOptions& rotary,
    const NewTokens& tokens,
    const CacheView& cache) {
  if (rotary.scaling() != RotaryScaling::kLongRope || tokens.most_before == 0) {
    return;
  }
  const auto original = rotary.original_context_length().value_or(0);
  for (int64_t b = 0; b < tokens.before.size(0); ++b) {
    const auto length = tokens.before.const_data_ptr<int64_t>()[b];
    const bool was_long = cache.peak_length(b) > original;
    TORCH_ATTENTION_CHECK(
        length == 0 || was_long == (tokens.most_after > original),
        "{}: expected texts that stay {} original_context_length = {} of "
        "rotary scaling longrope, or an empty cache, but got one of {} "
        "tokens that grows to {}: on the other side of it all keys are "
        "rotated otherwise; reset the cache and decode the whole text again",
        name,
        was_long ? "beyond" : "within",
        original,
        length,
        tokens.most_after);
  }
}

torch::Tensor padding_last(const torch::Tensor& x, const NewTokens& tokens) {
  return tokens.padding.defined() ? shifted(x, tokens.padding) : x;
}

torch::Tensor padding_first(const torch::Tensor& x, const NewTokens& tokens) {
  return tokens.padding.defined() ? shifted(x, -tokens.padding) : x;
}

void set_rows_of_cache(
    const CacheView& cache,
    const torch::Tensor& first,
    int64_t T,
    functional::ScaledDotProductAttentionFuncOptions& options) {
  const auto S = cache.num_rows();
  const auto starts = cache.starts();
  const auto rows = cache.lengths() - starts;
  const auto offsets = first - starts;
  if (!all_are(rows, S) || !all_are(offsets, S - T)) {
    options.key_lengths(rows).query_offsets(offsets);
  }
}

void set_decode_blocks(
    const char* name,
    const DecodeOptions& call,
    const CacheView& cache,
    const NewTokens& tokens,
    const CallSizes& sizes,
    BlockScope scope,
    functional::ScaledDotProductAttentionFuncOptions& options) {
  if (!call.visible_blocks().defined()) {
    return;
  }
  // The mask is the same for all heads.
  const std::vector<int64_t> scores{sizes.B, 1, sizes.T, cache.num_rows()};
  auto blocks =
      VisibleBlocks{call.visible_blocks(), tokens.before - cache.starts()};
  if (blocks.ids.dim() == 2 && blocks.ids.size(1) == sizes.T) {
    blocks.ids = padding_last(blocks.ids.unsqueeze(-1), tokens).squeeze(-1);
  }
  set_visible_blocks(name, blocks, scope, scores, options);
}

void set_decode_scores(
    const char* name,
    const DecodeOptions& call,
    const CacheView& cache,
    const CallSizes& sizes,
    int64_t num_heads,
    functional::ScaledDotProductAttentionFuncOptions& options) {
  if (!call.bias().defined() && !call.scores() &&
      !call.block_mask().defined()) {
    return;
  }
  // Blocks that are freed do not move the others.
  const bool moves_rows = cache.slab() != nullptr &&
      (cache.options().window() || cache.options().chunk());
  TORCH_ATTENTION_CHECK(
      !moves_rows && !call.left_padded(),
      "{}: expected {} beside a cache that keeps all tokens, and tokens "
      "that are not left_padded",
      name,
      call.bias().defined()             ? "a bias"
          : call.block_mask().defined() ? "a block_mask"
                                        : "a function `scores`");
  set_call(
      name,
      ForwardOptions()
          .bias(call.bias())
          .block_mask(call.block_mask())
          .scores(call.scores()),
      {sizes.B, num_heads, sizes.T, sizes.S},
      options);
}

} // namespace torch_attention::detail
