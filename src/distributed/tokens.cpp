#include <distributed/tokens.h>

#include <check.h>
#include <distributed/communication.h>
#include <kernels/backward_node.h>
#include <nn/score_rule.h>

#include <c10/util/Exception.h>

#include <sstream>
#include <type_traits>

namespace torch_attention::distributed {

namespace {

/// Appends the positions of one process's tokens in the sequence.
void add_places(
    const char* name,
    int64_t num_tokens,
    int64_t rank,
    const Group& group,
    TokenLayout layout,
    std::vector<torch::Tensor>& places) {
  for (const auto& span :
       spans_of(name, num_tokens, rank, group->getSize(), layout)) {
    places.push_back(torch::arange(span.start, span.end, torch::kLong));
  }
}

/// Returns the positions in the sequence of all processes' tokens, concatenated
/// by process: int64 (T).
torch::Tensor places_of_all(
    int64_t num_tokens,
    const Group& group,
    TokenLayout layout) {
  std::vector<torch::Tensor> places;
  for (int rank = 0; rank < group->getSize(); ++rank) {
    add_places("tokens", num_tokens, rank, group, layout, places);
  }
  return torch::cat(places);
}

} // namespace

std::vector<Span> spans_of(
    const char* name,
    int64_t num_tokens,
    int64_t rank,
    int64_t size,
    TokenLayout layout) {
  const bool balanced = layout == TokenLayout::kBalanced;
  const auto parts = balanced ? 2 * size : size;
  TORCH_ATTENTION_CHECK(
      num_tokens >= 0 && num_tokens % parts == 0,
      "{}: expected sequences whose number of tokens is divisible by "
      "{}{}, but got {}",
      name,
      parts,
      balanced ? ", twice the number of processes"
               : ", the number of processes",
      num_tokens);
  const auto length = num_tokens / parts;
  const auto span = [&](int64_t part) {
    return Span{part * length, (part + 1) * length};
  };
  if (balanced) {
    return {span(rank), span(parts - 1 - rank)};
  }
  return {span(rank)};
}

torch::Tensor in_order(
    const torch::Tensor& x,
    int64_t dim,
    const Group& group,
    TokenLayout layout) {
  return layout == TokenLayout::kContiguous
      ? x
      : x.index_select(
            dim,
            places_of_all(x.size(dim), group, layout).argsort().to(x.device()));
}

torch::Tensor by_process(
    const torch::Tensor& x,
    int64_t dim,
    const Group& group,
    TokenLayout layout) {
  return layout == TokenLayout::kContiguous
      ? x
      : x.index_select(
            dim, places_of_all(x.size(dim), group, layout).to(x.device()));
}

torch::Tensor own_positions(
    int64_t num_tokens,
    const Group& group,
    TokenLayout layout) {
  constexpr auto kName = "own_positions";
  check_group(kName, group);
  std::vector<torch::Tensor> positions;
  add_places(kName, num_tokens, group->getRank(), group, layout, positions);
  return torch::cat(positions);
}

torch::Tensor own_tokens(
    const torch::Tensor& x,
    int64_t dim,
    const Group& group,
    TokenLayout layout) {
  constexpr auto kName = "own_tokens";
  check_group(kName, group);
  TORCH_CHECK(x.defined(), "joined_tokens: the tensor is undefined");
  std::vector<torch::Tensor> parts;
  for (const auto& span : spans_of(
           kName, x.size(dim), group->getRank(), group->getSize(), layout)) {
    parts.push_back(x.narrow(dim, span.start, span.size()));
  }
  return parts.size() == 1 ? parts.front() : torch::cat(parts, dim);
}

torch::Tensor joined_tokens(
    const torch::Tensor& x,
    int64_t dim,
    const Group& group,
    TokenLayout layout) {
  constexpr auto kName = "joined_tokens";
  check_group(kName, group);
  TORCH_CHECK(x.defined(), "joined_tokens: the tensor is undefined");
  const torch::NoGradGuard no_grad;
  compare(
      group,
      kName,
      c10::str(x.scalar_type(), " of shape ", x.sizes()),
      x.device())();
  const auto from = dim < 0 ? dim + x.dim() : dim;
  const auto all = all_gather(group, x.detach(), "the joining of tokens");
  return in_order(
      all.movedim(0, from).flatten(from, from + 1), from, group, layout);
}

namespace {

void check_tokens(
    const char* name,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options,
    const SequenceOptions& sequence) {
  for (const auto* x : {&query, &key, &value}) {
    TORCH_ATTENTION_CHECK(
        x->defined() && x->dim() == 4,
        "{}: expected query, key and value of shape (B, heads, tokens, "
        "size), but got {}",
        name,
        x->defined() ? c10::str(x->sizes()) : "an undefined tensor");
  }
  TORCH_ATTENTION_CHECK(
      query.size(0) == key.size(0) && key.size(0) == value.size(0) &&
          key.size(2) == value.size(2) && key.size(1) == value.size(1) &&
          (options.enable_gqa()
               ? key.size(1) > 0 && query.size(1) % key.size(1) == 0
               : query.size(1) == key.size(1)),
      "{}: expected query, key and value of the same sequences, as many "
      "keys as values, and as many heads or, with enable_gqa, a divisor "
      "of them, but got query {}, key {}, value {}",
      name,
      query.sizes(),
      key.sizes(),
      value.sizes());
  const auto [T, S] = whole_sizes(query, key, group, sequence);
  const bool by_position =
      options.rule().hides_keys() || options.alibi_slopes().defined();
  TORCH_ATTENTION_CHECK(
      T == S || !by_position,
      "{}: expected as many keys as queries, beside causal, windows, "
      "chunk or alibi_slopes, but got {} keys and {} queries of all "
      "processes",
      name,
      S,
      T);
  TORCH_ATTENTION_CHECK(
      !options.cu_seqlens().defined() && !options.cu_seqlens_k().defined(),
      "{}: expected no cu_seqlens, where several processes share the tokens",
      name);
  TORCH_ATTENTION_CHECK(
      !options.scores() && !options.weights(),
      "{}: expected no function `{}`, where several processes share the "
      "tokens",
      name,
      options.scores() ? "scores" : "weights");
  TORCH_ATTENTION_CHECK(
      !options.query_offsets().defined(),
      "{}: expected no query_offsets, since the layout says where the "
      "tokens are",
      name);
}

/// Returns a text of everything that has to be equal in all processes.
std::string describe_call(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const functional::ScaledDotProductAttentionFuncOptions& options,
    const SequenceOptions& sequence) {
  std::ostringstream text;
  text.precision(kDigits);
  const auto add = [&](const char* what, const torch::Tensor& x) {
    text << ", " << what << ' ';
    if (x.defined()) {
      text << x.scalar_type() << ' ' << x.sizes()
           << (kernels::is_recorded({&x}) ? " with a gradient" : "");
    } else {
      text << "none";
    }
  };
  text << (sequence.layout() == TokenLayout::kBalanced ? "kBalanced"
                                                       : "kContiguous")
       << (sequence.whole_context() ? ", whole_context" : "");
  add("query", query);
  add("key", key);
  add("value", value);
  detail::visit_rule(options.rule(), [&](const char* name, const auto& number) {
    text << ", " << name << ' ';
    if constexpr (std::is_same_v<decltype(number), const bool&>) {
      text << number;
    } else if (number) {
      text << *number;
    } else {
      text << "none";
    }
  });
  text << ", dropout " << (options.training() ? options.dropout() : 0.0);
  add("key_lengths", options.key_lengths());
  add("mask", options.mask());
  add("bias", options.bias());
  add("alibi_slopes", options.alibi_slopes());
  add("sinks", options.sinks());
  return text.str();
}

} // namespace

WholeSizes whole_sizes(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const Group& group,
    const SequenceOptions& sequence) {
  const int64_t P = group->getSize();
  return {query.size(2) * P, key.size(2) * (sequence.whole_context() ? 1 : P)};
}

void check_scores(
    const char* name,
    const functional::ScaledDotProductAttentionFuncOptions& options,
    const torch::Tensor& query,
    int64_t num_keys) {
  TORCH_ATTENTION_CHECK(
      !options.block_mask().defined(),
      "{}: expected no block_mask, where several processes share the tokens",
      name);
  const std::vector<int64_t> scores = {
      query.size(0), query.size(1), query.size(2), num_keys};
  for (const auto* x : {&options.mask(), &options.bias()}) {
    bool fits = !x->defined() || (x->dim() >= 2 && x->dim() <= 4);
    for (int64_t i = 1; fits && x->defined() && i <= x->dim(); ++i) {
      fits =
          x->size(-i) == 1 || x->size(-i) == scores[static_cast<size_t>(4 - i)];
    }
    TORCH_ATTENTION_CHECK(
        fits,
        "{}: expected a mask or bias for the own queries and all keys, "
        "that broadcasts to (B, H, T/P, S) = {}, but got {}",
        name,
        torch::IntArrayRef(scores),
        x->sizes());
  }
}

void check_call(
    const char* name,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options,
    const SequenceOptions& sequence,
    const std::function<void()>& check) {
  check_group(name, group);
  std::string error;
  try {
    check_tokens(name, query, key, value, group, options, sequence);
    check();
  } catch (const c10::Error& wrong) {
    error = wrong.what_without_backtrace();
  }
  // Errors are sent, too, so that the other processes fail as well.
  compare(
      group,
      name,
      error.empty() ? describe_call(query, key, value, options, sequence)
                    : error,
      sending_device(query))();
  TORCH_CHECK(error.empty(), error);
}

} // namespace torch_attention::distributed
