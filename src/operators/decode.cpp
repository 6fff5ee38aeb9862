#include <operators/decode.h>

#include <check.h>
#include <kernels/cache_rows.h>
#include <kernels/choice.h>
#include <kernels/overlap.h>
#include <kernels/plain.h>
#include <nn/checks.h>
#include <nn/functional/checked_attention.h>
#include <operators/attention_call.h>
#include <torch_attention/nn/functional/attention.h>

#include <ATen/autocast_mode.h>

#include <algorithm>

namespace torch_attention::operators {

namespace {

constexpr size_t kNumDecodeTensors = 6;
constexpr size_t kNumDecodeArguments =
    kNumDecodeTensors + count_arguments(kOfDecode);
constexpr const char* kDecode = "torch_attention::decode";

struct DecodeCall {
  AttentionCall attention;
  torch::Tensor key_cache;
  torch::Tensor value_cache;
  torch::Tensor lengths;
};

void check_devices(const DecodeCall& call) {
  const auto& [query, key, value, options] = call.attention;
  const auto device = query.device();
  kernels::check_device(kDecode, "key", key, device);
  kernels::check_device(kDecode, "value", value, device);
  kernels::check_device(kDecode, "key_cache", call.key_cache, device);
  kernels::check_device(kDecode, "value_cache", call.value_cache, device);
  kernels::check_device(
      kDecode, "lengths", call.lengths, device, /*elsewhere=*/true);
}

DecodeCall read_decode(const torch::jit::Stack& stack) {
  const auto values = torch::jit::last(stack, kNumDecodeArguments);
  DecodeCall call;
  call.attention.query = values[0].toTensor();
  call.attention.key = values[1].toTensor();
  call.attention.value = values[2].toTensor();
  call.key_cache = values[3].toTensor();
  call.value_cache = values[4].toTensor();
  call.lengths = values[5].toTensor();
  check_devices(call);
  auto& options = call.attention.options;
  options.causal(true);
  auto next = kNumDecodeTensors;
  for (const auto& argument : kArguments) {
    if (argument.has(kOfDecode)) {
      check_device_of_argument(
          kDecode, argument, values[next], call.attention.query.device());
      read_argument(argument, values[next++], options);
    }
  }
  return call;
}

/// Checks the new rows (B, G, T, D) of a cache (B, G, capacity, D).
void check_rows(
    const char* what,
    const torch::Tensor& rows,
    const torch::Tensor& cache,
    const torch::Tensor& query) {
  const bool fits = rows.dim() == 4 && cache.dim() == 4 && query.dim() == 4 &&
      rows.size(0) == query.size(0) && rows.size(2) == query.size(2) &&
      cache.size(0) == rows.size(0) && cache.size(1) == rows.size(1) &&
      cache.size(3) == rows.size(3) &&
      cache.scalar_type() == query.scalar_type() &&
      cache.device() == query.device();
  TORCH_ATTENTION_CHECK(
      fits,
      "torch_attention::decode: expected a query (B, H, T, D), a {} (B, "
      "G, T, D) and its cache (B, G, capacity, D) of the query's dtype "
      "and device, but got {}, {} and a cache {} of {} on {}",
      what,
      query.sizes(),
      rows.sizes(),
      cache.sizes(),
      cache.scalar_type(),
      cache.device());
}

/// Returns the output of lengths on the CPU: attention reads as many rows of
/// the caches as the longest sequence has.
torch::Tensor decode_of_known_lengths(
    const DecodeCall& call,
    int64_t capacity) {
  auto [query, key, value, options] = call.attention;
  const auto B = query.size(0);
  const auto T = query.size(2);
  const auto lengths =
      checks::to_counts(kDecode, "lengths", call.lengths, B, capacity - T)
          .contiguous();
  const torch::IntArrayRef first(
      lengths.const_data_ptr<int64_t>(), static_cast<size_t>(B));
  kernels::write_rows(
      {{call.key_cache, key}, {call.value_cache, value}},
      first,
      std::vector<int64_t>(static_cast<size_t>(B), T));
  const auto most = B > 0 ? *std::max_element(first.begin(), first.end()) : 0;
  const bool even = std::all_of(
      first.begin(), first.end(), [most](int64_t n) { return n == most; });
  // Without lengths LibTorch's kernels for devices share the keys of a
  // sequence among blocks of threads.
  if (query.is_cpu() || !even) {
    options.query_offsets(lengths).key_lengths(lengths + T);
  }
  return functional::scaled_dot_product_attention(
      query,
      call.key_cache.narrow(2, 0, most + T),
      call.value_cache.narrow(2, 0, most + T),
      options);
}

/// Returns the output of lengths on the caches' device. They are not read here,
/// which would wait for the device and could not be captured in a graph, so
/// that all rows of the caches are given to attention, and the device itself
/// checks them as it writes the new rows.
torch::Tensor decode_of_lengths_on_device(
    const DecodeCall& call,
    int64_t capacity) {
  auto [query, key, value, options] = call.attention;
  const auto T = query.size(2);
  checks::check_counts(kDecode, "lengths", call.lengths, query.size(0));
  const auto lengths = checks::to_int64(call.lengths);
  kernels::write_rows(
      {{call.key_cache, key}, {call.value_cache, value}}, lengths);
  options.query_offsets(lengths).key_lengths(lengths + T);
  auto attention = functional::detail::checked_attention(
      query,
      call.key_cache.narrow(2, 0, capacity),
      call.value_cache.narrow(2, 0, capacity),
      options);
  attention.ends_at_lengths = true;
  return kernels::compute(
      kernels::choose(attention, options.kernel()), attention);
}

/// Checks that no two written rows share memory.
void check_memory(const DecodeCall& call) {
  const auto check_one = [](const char* what, const torch::Tensor& cache) {
    TORCH_ATTENTION_CHECK(
        !kernels::overlaps_itself(cache),
        "torch_attention::decode: expected a {} whose elements have memory "
        "of their own, but got one that overlaps itself, of sizes {} and "
        "strides {}; clone() an expanded tensor",
        what,
        cache.sizes(),
        cache.strides());
  };
  check_one("key_cache", call.key_cache);
  check_one("value_cache", call.value_cache);
  TORCH_CHECK(
      !kernels::overlap(call.key_cache, call.value_cache),
      "torch_attention::decode: expected key_cache and value_cache in "
      "memory of their own, but got two that overlap");
}

/// Returns `x`, copied if it shares memory with a cache: writing the new rows
/// would change it.
torch::Tensor outside_of_caches(
    const torch::Tensor& x,
    const DecodeCall& call) {
  return kernels::overlap(x, call.key_cache) ||
          kernels::overlap(x, call.value_cache)
      ? x.clone()
      : x;
}

} // namespace

void decode(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const torch::NoGradGuard no_grad;
  auto call = read_decode(*stack);
  auto& [query, key, value, options] = call.attention;
  check_rows("key", key, call.key_cache, query);
  check_rows("value", value, call.value_cache, query);
  check_memory(call);
  for (auto* x : {&query, &key, &value}) {
    *x = outside_of_caches(*x, call);
  }
  const auto T = query.size(2);
  const auto capacity =
      std::min(call.key_cache.size(2), call.value_cache.size(2));
  TORCH_ATTENTION_CHECK(
      T <= capacity,
      "torch_attention::decode: expected at most {} tokens, the capacity "
      "of the cache, but got {}",
      capacity,
      T);
  options.enable_gqa(key.size(1) != query.size(1));
  const bool on_device =
      !query.is_cpu() && call.lengths.device() == query.device();
  const auto output = on_device ? decode_of_lengths_on_device(call, capacity)
                                : decode_of_known_lengths(call, capacity);
  replace_last(*stack, kNumDecodeArguments, {as_output(output)});
}

void decode_meta(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const auto call = read_decode(*stack);
  const auto& query = call.attention.query;
  auto sizes = query.sym_sizes().vec();
  sizes.back() = call.attention.value.sym_size(-1);
  replace_last(
      *stack, kNumDecodeArguments, {empty_heads_last(sizes, query.options())});
}

void autocast_decode(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const auto dtype =
      torch::jit::peek(*stack, 3, kNumDecodeArguments).toTensor().scalar_type();
  for (size_t i = 0; i < 3; ++i) {
    auto& x = torch::jit::peek(*stack, i, kNumDecodeArguments);
    x = x.toTensor().to(dtype);
  }
  op.callBoxed(stack);
}

} // namespace torch_attention::operators
