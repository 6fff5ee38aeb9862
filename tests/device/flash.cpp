#include <device/flash.h>

#include <device/arguments.h>
#include <device/definition.h>
#include <device/memory.h>
#include <device/sequences.h>
#include <support/test.h>

#include <cmath>
#include <limits>

namespace torch_attention::testing {

namespace flash_kernel {

namespace {

constexpr const char* kForward = "_flash_attention_forward";
constexpr const char* kBackward = "_flash_attention_backward";

void check_tensors(const char* op, const FlashCall& x) {
  require_rows(op, "query", x.query);
  require_rows(op, "key", x.key);
  require_rows(op, "value", x.value);
  const auto dtype = x.query.scalar_type();
  require(
      (dtype == torch::kHalf || dtype == torch::kBFloat16) &&
          x.key.scalar_type() == dtype && x.value.scalar_type() == dtype,
      op,
      "query, key and value of float16 or of bfloat16");
  const auto rank = x.query_starts.defined() ? 3 : 4;
  require(
      x.query.dim() == rank && x.key.dim() == rank &&
          x.key.sizes() == x.value.sizes() &&
          x.key.size(-1) == x.query.size(-1) &&
          (rank == 3 || x.key.size(0) == x.query.size(0)),
      op,
      c10::str("tensors of rank ", rank, " and of sizes that agree"));
  const auto D = x.query.size(-1);
  require(D % 8 == 0 && D <= 256, op, "a head_dim of 8, 16, ..., 256");
  require(
      x.key.size(-2) > 0 && x.query.size(-2) % x.key.size(-2) == 0,
      op,
      "a number of query heads that the number of key heads divides");
  require(x.dropout >= 0 && x.dropout < 1, op, "dropout in [0, 1)");
}

void check_packed(const char* op, const FlashCall& x) {
  require(
      x.query_starts.defined() == x.key_starts.defined(),
      op,
      "cum_seq_q and cum_seq_k, or neither");
  if (!x.query_starts.defined()) {
    require(!x.keys_used.defined(), op, "seqused_k with cum_seq_k only");
    return;
  }
  const auto B = x.query_starts.numel() - 1;
  require(B > 0, op, "at least one sequence");
  require_counts(op, "cum_seq_q", x.query_starts, B + 1);
  require_counts(op, "cum_seq_k", x.key_starts, B + 1);
  if (x.keys_used.defined()) {
    require_counts(op, "seqused_k", x.keys_used, B);
  }
}

/// A call that is checked, with its sequences.
struct Flash {
  Flash(const char* op, const FlashCall& x)
      : call(x), queries(0, 0), keys(0, 0) {
    check_tensors(op, x);
    check_packed(op, x);
    if (x.query_starts.defined()) {
      queries = TokenRows(x.query_starts, {});
      keys = TokenRows(x.key_starts, x.keys_used);
      // A CUDA device would leave the further tokens out.
      require(
          queries.longest() <= x.most_queries && keys.longest() <= x.most_keys,
          op,
          "sequences of at most max_q queries and max_k keys");
    } else {
      queries = TokenRows(x.query.size(0), x.query.size(1));
      keys = TokenRows(x.query.size(0), x.key.size(1));
    }
  }

  Window window_of(int64_t i) const {
    const bool packed = call.query_starts.defined();
    const auto most_queries = packed ? call.most_queries : queries.length(i);
    Window window{call.left, call.right, keys.length(i) - queries.length(i)};
    // A single query is the last, so that it sees all keys.
    if (call.causal && most_queries != 1) {
      window.right = 0;
    }
    for (auto* side : {&window.left, &window.right}) {
      if (*side && **side < 0) {
        *side = std::nullopt;
      }
    }
    return window;
  }

  DefinedAttention sequence(int64_t i, int64_t seed) const {
    const auto heads = call.query.size(-2);
    DefinedAttention a;
    a.query = to_double(queries.of(call.query, i));
    a.key = to_double(keys.of(call.key, i));
    a.value = to_double(keys.of(call.value, i));
    a.window = window_of(i);
    a.scale = call.scale.value_or(
        1 / std::sqrt(static_cast<double>(call.query.size(-1))));
    a.kept = kept_by_dropout(
        {seed, call.dropout}, i, {heads, queries.length(i), keys.length(i)});
    a.empty_logsumexp = std::numeric_limits<double>::infinity();
    return a;
  }

  FlashCall call;
  TokenRows queries;
  TokenRows keys;
};

int64_t seed_of(const torch::Tensor& rng_state) {
  return rng_state.to(torch::kCPU).to(torch::kLong)[0].item<int64_t>();
}

FlashCall read_call(OperatorArguments& arguments) {
  FlashCall x;
  x.query = arguments.tensor("query");
  x.key = arguments.tensor("key");
  x.value = arguments.tensor("value");
  x.query_starts = arguments.tensor("cum_seq_q");
  x.key_starts = arguments.tensor("cum_seq_k");
  x.most_queries = arguments.integer("max_q");
  x.most_keys = arguments.integer("max_k");
  x.dropout = arguments.number("dropout_p");
  x.causal = arguments.flag("is_causal");
  x.scale = arguments.optional_number("scale");
  x.left = arguments.optional_integer("window_size_left");
  x.right = arguments.optional_integer("window_size_right");
  return x;
}

OperatorResults forward(OperatorArguments& arguments) {
  auto call = read_call(arguments);
  call.keys_used = arguments.tensor("seqused_k");
  require(
      !arguments.flag("return_debug_mask"), kForward, "no return_debug_mask");
  arguments.check_all_read();
  const auto found = flash_forward(call);
  return {
      found.output,
      found.logsumexp,
      found.rng_state,
      found.unused,
      torch::empty({0}, call.query.options())};
}

OperatorResults backward(OperatorArguments& arguments) {
  const auto call = read_call(arguments);
  const auto grad_output = arguments.tensor("grad_out");
  const FlashOutput given{
      arguments.tensor("out"),
      arguments.tensor("logsumexp"),
      arguments.tensor("rng_state", "philox_seed"),
      arguments.tensor("unused", "philox_offset")};
  arguments.check_all_read();
  const auto found = flash_backward(call, grad_output, given);
  return {found.query, found.key, found.value};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  implement<&forward>(library, "_flash_attention_forward");
  implement<&backward>(library, "_flash_attention_backward");
}

} // namespace

} // namespace flash_kernel

FlashOutput flash_forward(const FlashCall& call) {
  const flash_kernel::Flash flash(flash_kernel::kForward, call);
  const auto seed = call.dropout > 0 ? draw_seed() : 0;
  const auto& query = call.query;
  const bool packed = call.query_starts.defined();
  const auto H = query.size(-2);
  auto output = unwritten(query.sizes());
  auto logsumexp = unwritten(
      packed ? Sizes{H, query.size(0)}
             : Sizes{query.size(0), H, query.size(1)});
  for (int64_t i = 0; i < flash.queries.count(); ++i) {
    const auto found = attention_by_definition(flash.sequence(i, seed));
    flash.queries.of(output, i).copy_(found.output);
    flash.queries.of_logsumexp(logsumexp, i).copy_(found.logsumexp);
  }
  const auto random = torch::full({2}, seed, torch::kLong);
  return {
      to_device(output, query.scalar_type()),
      to_device(logsumexp, torch::kFloat),
      to_device(random, torch::kUInt64),
      to_device(torch::zeros({}, torch::kLong), torch::kUInt64)};
}

FlashGradients flash_backward(
    const FlashCall& call,
    const torch::Tensor& grad_output,
    const FlashOutput& given) {
  const flash_kernel::Flash flash(flash_kernel::kBackward, call);
  const auto dtype = call.query.scalar_type();
  for (const auto& [name, x] :
       {std::pair("grad_out", grad_output), std::pair("out", given.output)}) {
    require(
        x.device() == device() && x.scalar_type() == dtype &&
            x.sizes() == call.query.sizes(),
        flash_kernel::kBackward,
        c10::str(name, " on the device, of the query's dtype and sizes"));
  }
  require_rows(flash_kernel::kBackward, "logsumexp", given.logsumexp);
  require(
      given.logsumexp.scalar_type() == torch::kFloat,
      flash_kernel::kBackward,
      "logsumexp of float32");
  const auto seed =
      call.dropout > 0 ? flash_kernel::seed_of(given.rng_state) : 0;
  auto query = unwritten(call.query.sizes());
  auto key = unwritten(call.key.sizes());
  auto value = unwritten(call.value.sizes());
  for (int64_t i = 0; i < flash.queries.count(); ++i) {
    const auto found = gradients_by_definition(
        flash.sequence(i, seed),
        to_double(flash.queries.of(grad_output, i)),
        {to_double(flash.queries.of(given.output, i)),
         to_double(flash.queries.of_logsumexp(given.logsumexp, i))});
    flash.queries.of(query, i).copy_(found.query);
    flash.keys.of(key, i).copy_(found.key);
    flash.keys.of(value, i).copy_(found.value);
  }
  return {
      to_device(query, dtype), to_device(key, dtype), to_device(value, dtype)};
}

} // namespace torch_attention::testing
