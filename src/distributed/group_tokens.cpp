#include <distributed/group_tokens.h>

#include <check.h>
#include <distributed/cache_parts.h>
#include <distributed/communication.h>

#include <optional>

namespace torch_attention::distributed {

namespace {

using FuncOptions = functional::ScaledDotProductAttentionFuncOptions;

constexpr const char* kLength = "the length of the text";

const char* name_of_attention(const SequenceOptions& sequence) {
  return sequence.all_to_all() ? "all_to_all_attention" : "ring_attention";
}

torch::Tensor attend_by(
    const SequenceOptions& sequence,
    const Projected& heads,
    const Group& group,
    const FuncOptions& options) {
  const auto attention =
      sequence.all_to_all() ? all_to_all_attention : ring_attention;
  return attention(
      heads.queries, heads.keys, heads.values, group, options, sequence);
}

} // namespace

GroupTokens::GroupTokens(const Group& group, const SequenceOptions& sequence)
    : group_(group), sequence_(sequence) {}

torch::Tensor GroupTokens::positions(int64_t T) const {
  return own_positions(T * group_->getSize(), group_, sequence_.layout());
}

torch::Tensor GroupTokens::own_lengths(const torch::Tensor& lengths, int64_t S)
    const {
  return lengths.defined() ? positions(S).lt(lengths.unsqueeze(1)).sum(1)
                           : lengths;
}

torch::Tensor GroupTokens::own_keys(const torch::Tensor& x, int64_t S) const {
  return x.defined() && x.size(-1) != 1 ? x.index_select(-1, positions(S)) : x;
}

void GroupTokens::check_call(const char* name, const ForwardOptions& call)
    const {
  TORCH_ATTENTION_CHECK(
      !call.cu_seqlens().defined() && !call.scores() &&
          !call.visible_blocks().defined() && !call.block_mask().defined(),
      "{}: expected no {}, where several processes share the tokens",
      name,
      call.scores()                         ? "function `scores`"
          : call.visible_blocks().defined() ? "visible_blocks"
          : call.block_mask().defined()     ? "block_mask"
                                            : "cu_seqlens");
}

detail::PartitionInput GroupTokens::enter(
    const detail::PartitionCall& call) const {
  // Attention compares its arguments, but cannot know what values are made of.
  const bool compares = call.value_input.defined();
  check_and_send(
      group_,
      compares                    ? call.name
          : call.exchanges_length ? kLength
                                  : name_of_attention(sequence_),
      call.x,
      call.check);
  if (compares) {
    compare(group_, call.name, detail::describe(call), call.x.device())();
  }
  return {call.x, call.context, call.value_input};
}

detail::PartitionInput GroupTokens::enter_cached(
    const detail::PartitionCall& call) const {
  check_and_send(group_, call.name, call.x, [&] {
    call.check();
    TORCH_ATTENTION_CHECK(
        call.x.is_cpu(),
        "{}: expected tokens on the CPU for caches, where several "
        "processes share the keys, but got some on {}",
        call.name,
        call.x.device());
  });
  return {
      call.x,
      call.context,
      call.value_input,
      compare(group_, call.name, detail::describe(call), call.x.device())};
}

int64_t GroupTokens::longest(int64_t own, torch::Device device) const {
  return largest_of_all(group_, kLength, own, device);
}

torch::Tensor GroupTokens::attend(
    const Projected& projected,
    const FuncOptions& options) const {
  return attend_by(
      SequenceOptions(sequence_).whole_context(false),
      projected,
      group_,
      options);
}

torch::Tensor GroupTokens::attend_to_context(
    const Projected& projected,
    const FuncOptions& options) const {
  return attend_by(sequence_, projected, group_, options);
}

torch::Tensor GroupTokens::attend_to_cache(
    const torch::Tensor& query,
    const detail::CacheView& cache,
    const torch::Tensor& first,
    FuncOptions options) const {
  // `check_cache` has refused blocks, which are not divided over processes.
  TORCH_INTERNAL_ASSERT(cache.slab() != nullptr);
  return attend_to_cache_parts(group_, query, *cache.slab(), first, options);
}

torch::Tensor GroupTokens::attend_to_context_cache(
    const torch::Tensor& query,
    const KVCache& cache,
    const FuncOptions& options) const {
  const auto keys = cache.keys();
  return attention_of_key_parts(
             query.to(keys.scalar_type()),
             keys,
             cache.values(),
             group_,
             options)
      .to(query.scalar_type());
}

KVCacheOptions GroupTokens::cache_options(const KVCacheOptions& options) const {
  return KVCacheOptions(options)
      .window(std::nullopt)
      .chunk(std::nullopt)
      .num_parts(num_token_parts())
      .part(group_->getRank());
}

void GroupTokens::check_cache(const char* name, const KVCacheOptions& cache)
    const {
  detail::check_cache_part(name, cache, num_token_parts(), group_->getRank());
}

const detail::Partition& GroupTokens::of_context() const {
  return sequence_.whole_context() ? *detail::whole_partition() : *this;
}

} // namespace torch_attention::distributed
