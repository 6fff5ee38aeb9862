#include <nn/modules/call.h>

#include <check.h>
#include <kernels/backward_node.h>
#include <kernels/sequences.h>
#include <nn/checks.h>
#include <nn/modules/option_fields.h>
#include <nn/modules/visible_blocks.h>

#include <ATen/ExpandUtils.h>
#include <c10/util/StringUtil.h>

namespace torch_attention::detail {

namespace {

const char* names_of(const std::vector<int64_t>& scores) {
  return scores.size() == 4 ? "(B, H, T, S)"
      : scores.size() == 3  ? "(B, T, S)"
                            : "(T, S)";
}

/// Checks that x is (T, S), or has as many dimensions as the scores: with one
/// dimension less, broadcasting could take sequences for heads.
void check_shape(
    const char* name,
    const char* what,
    const torch::Tensor& x,
    const std::vector<int64_t>& scores) {
  const auto dims = static_cast<size_t>(x.dim());
  TORCH_ATTENTION_CHECK(
      (dims == 2 || dims == scores.size()) &&
          at::is_expandable_to(x.sizes(), scores),
      "{}: expected a {} that broadcasts to the scores {} = {}, of shape "
      "(T, S) or with all {} dimensions, but got {}{}",
      name,
      what,
      names_of(scores),
      torch::IntArrayRef(scores),
      scores.size(),
      x.sizes(),
      scores.size() == 4 && dims == 3
          ? "; (B, T, S) needs unsqueeze(1), LibTorch's (B * H, T, S) needs "
            "unflatten(0, {B, H})"
          : "");
}

torch::Tensor checked_mask(
    const char* name,
    const torch::Tensor& mask,
    const std::vector<int64_t>& scores) {
  if (mask.defined()) {
    TORCH_ATTENTION_CHECK(
        mask.scalar_type() == torch::kBool,
        "{}: expected a bool mask (true hides), but got {}{}",
        name,
        mask.scalar_type(),
        mask.is_floating_point()
            ? "; pass what is to be added to the scores as `bias`"
            : "; where 0 stands for what is hidden, pass mask.eq(0)");
    check_shape(name, "mask", mask, scores);
  }
  return mask;
}

/// Returns the checked mask with as many dimensions as the scores.
torch::Tensor checked_padding(
    const char* name,
    const torch::Tensor& padding,
    const std::vector<int64_t>& scores) {
  if (!padding.defined()) {
    return padding;
  }
  const bool batched = scores.size() > 2;
  TORCH_ATTENTION_CHECK(
      padding.scalar_type() == torch::kBool,
      "{}: expected a bool key_padding_mask (true hides), but got {}{}",
      name,
      padding.scalar_type(),
      padding.is_floating_point()
          ? "; pass what is to be added to the scores as `bias`"
          : "; of an attention mask, 1 for tokens and 0 for padding, pass "
            "attention_mask.eq(0)");
  const auto expected = batched
      ? std::vector<int64_t>{scores.front(), scores.back()}
      : std::vector<int64_t>{scores.back()};
  TORCH_ATTENTION_CHECK(
      padding.sizes() == torch::IntArrayRef(expected),
      "{}: expected a key_padding_mask of shape {} = {}, but got {}",
      name,
      batched ? "(B, S)" : "(S)",
      torch::IntArrayRef(expected),
      padding.sizes());
  auto result = padding;
  while (static_cast<size_t>(result.dim()) < scores.size()) {
    result = result.unsqueeze(-2);
  }
  return result;
}

/// Returns the checked starts of the packed sequences of x (1, N, ...).
torch::Tensor starts_of(
    const char* name,
    const char* what,
    const torch::Tensor& cu_seqlens,
    const torch::Tensor& x) {
  TORCH_ATTENTION_CHECK(
      x.dim() == 3 && x.size(0) == 1,
      "{}: expected, with {}, tokens of shape (N, d_in) or (1, N, d_in), "
      "but got {}",
      name,
      what,
      x.sizes());
  return checks::to_starts(name, what, cu_seqlens, x.size(1));
}

/// Returns the position of each token in its sequence: int64 (N).
torch::Tensor packed_positions(const torch::Tensor& starts) {
  const auto lengths = starts.diff();
  const auto begins =
      starts.slice(0, 0, starts.size(0) - 1).repeat_interleave(lengths);
  return torch::arange(begins.size(0), torch::kLong) - begins;
}

torch::Tensor with_head(const torch::Tensor& x) {
  return x.defined() && x.dim() == 3 ? x.unsqueeze(1) : x;
}

} // namespace

bool is_empty(const ForwardOptions& call) {
  return OptionFields::is_empty(call);
}

bool lacks_batch(const torch::Tensor& x, const ForwardOptions& call) {
  return call.cu_seqlens().defined() && x.defined() && x.dim() == 2;
}

ForwardOptions with_batch(const ForwardOptions& call) {
  auto result = call;
  const auto& value_input = call.value_input();
  if (value_input.defined() && value_input.dim() == 2) {
    result.value_input(value_input.unsqueeze(0));
  }
  return result;
}

CallSizes call_sizes(
    const char* name,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  TORCH_ATTENTION_CHECK(
      !call.cu_seqlens_k().defined(),
      "{}: expected cu_seqlens alone, since it attends to its own "
      "tokens, but got cu_seqlens_k",
      name);
  if (!call.cu_seqlens().defined()) {
    const auto T = x.size(-2);
    return {x.dim() > 2 ? x.size(0) : 1, T, T};
  }
  const auto starts = starts_of(name, "cu_seqlens", call.cu_seqlens(), x);
  const auto longest = kernels::longest_sequence(starts);
  return {starts.size(0) - 1, longest, longest};
}

CallSizes call_sizes(
    const char* name,
    const torch::Tensor& x,
    const torch::Tensor& context,
    const ForwardOptions& call) {
  TORCH_ATTENTION_CHECK(
      call.cu_seqlens().defined() == call.cu_seqlens_k().defined(),
      "{}: expected cu_seqlens of the input and cu_seqlens_k of the "
      "context, or neither, but got {} alone",
      name,
      call.cu_seqlens().defined() ? "cu_seqlens" : "cu_seqlens_k");
  TORCH_ATTENTION_CHECK(
      !call.visible_blocks().defined(),
      "{}: expected no visible_blocks, since it attends to a context and "
      "not to its own tokens",
      name);
  if (!call.cu_seqlens().defined()) {
    return {x.size(0), x.size(1), context.size(1)};
  }
  const auto queries = starts_of(name, "cu_seqlens", call.cu_seqlens(), x);
  const auto keys =
      starts_of(name, "cu_seqlens_k", call.cu_seqlens_k(), context);
  return {
      queries.size(0) - 1,
      kernels::longest_sequence(queries),
      kernels::longest_sequence(keys)};
}

void check_length(
    const char* name,
    const torch::Tensor& x,
    const ForwardOptions& call,
    int64_t context_length) {
  const auto longest = call_sizes(name, x, call).T;
  TORCH_ATTENTION_CHECK(
      longest <= context_length,
      "{}: expected at most {} tokens (context_length), but got {}{}",
      name,
      context_length,
      longest,
      call.cu_seqlens().defined() ? " in one of the sequences" : "");
}

void check_value_input(
    const char* name,
    const torch::Tensor& value_input,
    bool needed,
    const char* what,
    const torch::Tensor& tokens,
    const torch::Tensor& weight) {
  TORCH_ATTENTION_CHECK(
      !needed || value_input.defined(),
      "{}: expected value_input (needs_value_input), the tokens that values "
      "are projected from: in models such as DETR the {} without positions",
      name,
      what);
  if (!value_input.defined()) {
    return;
  }
  checks::check_sequences(
      name,
      "value_input",
      "the size of a token",
      value_input,
      weight,
      tokens.size(-1));
  TORCH_ATTENTION_CHECK(
      value_input.sizes() == tokens.sizes(),
      "{}: expected value_input of the shape of the {}, {}, but got {}",
      name,
      what,
      tokens.sizes(),
      value_input.sizes());
}

void set_call(
    const char* name,
    const ForwardOptions& call,
    const std::vector<int64_t>& scores,
    functional::ScaledDotProductAttentionFuncOptions& options,
    BlockScope scope) {
  TORCH_ATTENTION_CHECK(
      !call.value_input().defined(),
      "{}: expected no value_input, which MultiHeadAttention and the forward of "
      "CrossAttention take",
      name);
  TORCH_ATTENTION_CHECK(
      !call.global_tokens().defined(),
      "{}: expected no global_tokens, which LongformerAttention takes",
      name);
  const bool packed = call.cu_seqlens().defined();
  if (packed) {
    TORCH_ATTENTION_CHECK(
        !call.key_padding_mask().defined(),
        "{}: expected no key_padding_mask beside cu_seqlens, which packs "
        "sequences without padding",
        name);
    options.cu_seqlens(call.cu_seqlens()).cu_seqlens_k(call.cu_seqlens_k());
  }
  const auto mask = checked_mask(name, call.mask(), scores);
  const auto padding = checked_padding(name, call.key_padding_mask(), scores);
  options.mask(
      mask.defined() && padding.defined() ? mask.bitwise_or(padding)
          : mask.defined()                ? mask
                                          : padding);
  options.block_mask(call.block_mask());
  if (call.visible_blocks().defined()) {
    set_visible_blocks(name, {call.visible_blocks()}, scope, scores, options);
  }
  if (call.bias().defined()) {
    TORCH_ATTENTION_CHECK(
        call.bias().is_floating_point(),
        "{}: expected a floating-point bias, but got {}; pass what hides "
        "as `mask`",
        name,
        call.bias().scalar_type());
    check_shape(name, "bias", call.bias(), scores);
    options.bias(call.bias());
  }
  if (call.key_lengths().defined()) {
    TORCH_ATTENTION_CHECK(
        scores.size() > 2,
        "{}: expected key_lengths beside input of shape (B, T, d_in), but "
        "got input without a batch; leave out its last tokens, or pass "
        "key_padding_mask",
        name);
    options.key_lengths(call.key_lengths());
  }
  options.scores(call.scores());
  if (packed && scores.size() == 3) {
    // Functional attention takes packed sequences with heads.
    options.mask(with_head(options.mask()));
    options.bias(with_head(options.bias()));
  }
}

std::string text_of(const char* what, const torch::Tensor& x) {
  return x.defined() ? c10::str(
                           ", ",
                           what,
                           ' ',
                           x.scalar_type(),
                           ' ',
                           x.sizes(),
                           ' ',
                           x.layout(),
                           ' ',
                           x.device().type(),
                           kernels::is_recorded({&x}) ? " with a gradient" : "")
                     : "";
}

std::string text_of_counts(const char* what, const torch::Tensor& counts) {
  if (!counts.defined()) {
    return "";
  }
  constexpr size_t kMostListed = 8;
  const torch::IntArrayRef numbers(
      counts.const_data_ptr<int64_t>(), static_cast<size_t>(counts.numel()));
  if (numbers.size() <= kMostListed) {
    return c10::str(what, numbers);
  }
  uint64_t hash = 0;
  for (const auto number : numbers) {
    hash = 31 * hash + static_cast<uint64_t>(number);
  }
  return c10::str(
      what, numbers.slice(0, kMostListed), " and more with hash ", hash);
}

std::string describe_learned(const ForwardOptions& call) {
  return text_of("bias", call.bias()) +
      text_of("rotary_cos", call.rotary_cos()) +
      text_of("rotary_sin", call.rotary_sin());
}

torch::Tensor positions_of(
    const char* name,
    const ForwardOptions& call,
    const torch::Tensor& x) {
  const auto& positions = call.positions();
  if (!positions.defined()) {
    return call.cu_seqlens().defined()
        ? packed_positions(starts_of(name, "cu_seqlens", call.cu_seqlens(), x))
        : positions;
  }
  checks::check_dense(name, "positions", positions);
  const auto B = x.size(0);
  const auto T = x.size(1);
  const bool of_all = positions.dim() == 1 && positions.size(0) == T;
  const bool of_each =
      positions.dim() == 2 && positions.size(0) == B && positions.size(1) == T;
  TORCH_ATTENTION_CHECK(
      checks::has_integers(positions) && (of_all || of_each),
      "{}: expected positions of an integer dtype and shape (T) = [{}] "
      "or (B, T) = [{}, {}], but got {} of shape {}",
      name,
      T,
      B,
      T,
      positions.scalar_type(),
      positions.sizes());
  auto result = checks::to_int64(positions);
  // Skipped on a GPU: reading the value would synchronise.
  TORCH_ATTENTION_CHECK(
      !result.is_cpu() || result.numel() == 0 ||
          result.min().item<int64_t>() >= 0,
      "{}: expected positions >= 0, but got {}",
      name,
      result.min().item<int64_t>());
  return result;
}

torch::Tensor hidden_by_chunk(
    const torch::Tensor& positions,
    int64_t chunk,
    int64_t chunks_before) {
  const auto chunks = torch::div(positions, chunk, "floor");
  const auto before = chunks.unsqueeze(-1) - chunks.unsqueeze(-2);
  const auto hidden = before.lt(0).bitwise_or(before.gt(chunks_before));
  return hidden.dim() == 3 ? hidden.unsqueeze(1) : hidden;
}

torch::Tensor positions_after_padding(const torch::Tensor& key_padding_mask) {
  if (!key_padding_mask.defined() || key_padding_mask.numel() == 0) {
    return {};
  }
  // Skipped on a GPU: reading the value would synchronise.
  if (key_padding_mask.is_cpu() &&
      !key_padding_mask.select(-1, 0).any().item<bool>()) {
    return {};
  }
  const auto padding = key_padding_mask.to(torch::kInt64).cumprod(-1);
  return torch::arange(key_padding_mask.size(-1), padding.options()) -
      padding.sum(-1, /*keepdim=*/true);
}

void set_chunks(
    const torch::Tensor& x,
    const ForwardOptions& call,
    const torch::Tensor& positions,
    size_t num_score_dims,
    functional::ScaledDotProductAttentionFuncOptions& options) {
  if (!options.chunk() || call.cu_seqlens().defined()) {
    return;
  }
  const auto used = call.positions().defined()
      ? positions
      : positions_after_padding(call.key_padding_mask());
  if (!used.defined()) {
    return;
  }
  auto hidden = hidden_by_chunk(
      used.to(x.device()), *options.chunk(), /*chunks_before=*/0);
  if (hidden.dim() == 4 && num_score_dims == 3) {
    hidden = hidden.squeeze(1);
  }
  options.mask(
      options.mask().defined() ? hidden.bitwise_or(options.mask()) : hidden);
  options.chunk(std::nullopt);
}

void set_checked_chunks(
    const char* name,
    const torch::Tensor& x,
    const ForwardOptions& call,
    size_t num_score_dims,
    functional::ScaledDotProductAttentionFuncOptions& options) {
  if (!options.chunk()) {
    return;
  }
  TORCH_ATTENTION_CHECK(
      !call.cu_seqlens().defined() || !call.positions().defined(),
      "{}: expected no positions beside chunk, where sequences are "
      "packed (cu_seqlens)",
      name);
  const auto positions = call.positions().defined()
      ? positions_of(name, call, x)
      : torch::Tensor();
  set_chunks(x, call, positions, num_score_dims, options);
}

} // namespace torch_attention::detail
