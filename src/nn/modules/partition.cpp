#include <nn/modules/partition.h>

#include <check.h>
#include <kernels/backward_node.h>
#include <nn/functional/attend.h>
#include <nn/modules/decode.h>

#include <c10/util/StringUtil.h>

#include <utility>

namespace torch_attention::detail {

namespace {

using FuncOptions = functional::ScaledDotProductAttentionFuncOptions;

std::string text_of_input(const char* what, const torch::Tensor& x) {
  return x.defined() ? c10::str(
                           what,
                           x.scalar_type(),
                           " of shape ",
                           x.sizes(),
                           kernels::is_recorded({&x}) ? " with a gradient" : "")
                     : "";
}

} // namespace

std::string describe(const PartitionCall& call) {
  return text_of_input("input ", call.x) +
      text_of_input(", context ", call.context) +
      text_of_input(", value_input ", call.value_input) + call.text();
}

torch::Tensor Partition::positions(int64_t /*T*/) const {
  return {};
}

torch::Tensor Partition::own_lengths(
    const torch::Tensor& lengths,
    int64_t /*S*/) const {
  return lengths;
}

torch::Tensor Partition::own_keys(const torch::Tensor& x, int64_t /*S*/) const {
  return x;
}

torch::Tensor Partition::own_heads(
    const char* /*name*/,
    const char* /*what*/,
    const torch::Tensor& x) const {
  return x;
}

torch::Tensor Partition::own_slopes(int64_t num_heads) const {
  const auto [first, all] = heads();
  return all == 0 ? functional::alibi_slopes(num_heads)
                  : functional::alibi_slopes(all).narrow(0, first, num_heads);
}

void Partition::check_call(const char* /*name*/, const ForwardOptions& /*call*/)
    const {}

void Partition::check_has_all_tokens(const char* name, const char* what) const {
  TORCH_ATTENTION_CHECK(
      num_token_parts() == 1,
      "{}: {} needs all tokens, of which other processes have some "
      "(sequence_parallel)",
      name,
      what);
}

PartitionInput Partition::enter(const PartitionCall& call) const {
  call.check();
  return {call.x, call.context, call.value_input};
}

PartitionInput Partition::enter_cached(const PartitionCall& call) const {
  return enter(call);
}

torch::Tensor Partition::enter_weight(const torch::Tensor& weight) const {
  return weight;
}

torch::Tensor Partition::enter_keys(const torch::Tensor& weight) const {
  return weight;
}

torch::Tensor Partition::mean_of_heads(const torch::Tensor& x) const {
  return x;
}

int64_t Partition::longest(int64_t own, torch::Device /*device*/) const {
  return own;
}

torch::Tensor Partition::attend(
    const Projected& projected,
    const FuncOptions& options) const {
  return functional::detail::attend(
      projected.queries, projected.keys, projected.values, options, heads());
}

torch::Tensor Partition::attend_to_context(
    const Projected& projected,
    const FuncOptions& options) const {
  return Partition::attend(projected, options);
}

std::tuple<torch::Tensor, torch::Tensor> Partition::attend_with_weights(
    const Projected& projected,
    const FuncOptions& options) const {
  return functional::detail::attend_with_weights(
      projected.queries, projected.keys, projected.values, options, heads());
}

torch::Tensor Partition::attend_to_cache(
    const torch::Tensor& query,
    const CacheView& cache,
    const torch::Tensor& first,
    FuncOptions options) const {
  set_rows_of_cache(cache, first, query.size(2), options);
  return cache.attend(query, options);
}

torch::Tensor Partition::attend_to_context_cache(
    const torch::Tensor& query,
    const KVCache& cache,
    const FuncOptions& options) const {
  return functional::detail::attend(query, cache, options);
}

torch::Tensor Partition::gather(const torch::Tensor& combined) const {
  return combined;
}

torch::Tensor Partition::project(
    const torch::Tensor& combined,
    const kernels::LinearLayer& layer,
    Kernel kernel) const {
  return kernels::linear(combined, layer.weight, layer.bias, kernel);
}

KVCacheOptions Partition::cache_options(const KVCacheOptions& options) const {
  return options;
}

const Partition& Partition::of_context() const {
  return *this;
}

void Partition::check_cache(const char* name, const KVCacheOptions& cache)
    const {
  check_cache_part(name, cache, /*num_parts=*/1, /*part=*/0);
}

const PartitionPointer& whole_partition() {
  static const PartitionPointer whole = std::make_shared<const Partition>();
  return whole;
}

ForwardOptions own_heads(
    const char* name,
    const ForwardOptions& call,
    const Partition& partition) {
  auto own = call;
  own.mask(partition.own_heads(name, "mask", call.mask()));
  own.bias(partition.own_heads(name, "bias", call.bias()));
  return own;
}

void check_cache_part(
    const char* name,
    const KVCacheOptions& cache,
    int64_t num_parts,
    int64_t part) {
  TORCH_ATTENTION_CHECK(
      cache.num_parts() == num_parts && cache.part() == part,
      "{}: expected a cache of num_parts = {} and part = {}, but got {} "
      "and {}; make_cache makes one that fits",
      name,
      num_parts,
      part,
      cache.num_parts(),
      cache.part());
}

} // namespace torch_attention::detail
