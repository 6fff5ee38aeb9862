#include <device/efficient.h>

#include <device/arguments.h>
#include <device/definition.h>
#include <device/memory.h>
#include <device/sequences.h>
#include <support/test.h>

#include <cmath>
#include <limits>

namespace torch_attention::testing {

namespace efficient_kernel {

namespace {

constexpr const char* kForward = "_efficient_attention_forward";
constexpr const char* kBackward = "_efficient_attention_backward";
/// The rows of the logsumexp are padded to a multiple of this.
constexpr int64_t kRowMultiple = 32;
/// Pointers and strides must be multiples of this, in elements.
constexpr int64_t kAlignment = 4;
/// The dimension of heads in (B, T, H, D).
constexpr int64_t kHeads = 2;

int64_t padded_rows(int64_t rows) {
  return (rows + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

/// Throws unless x, of rank 4, begins and has its rows where vectors are loaded
/// from.
void require_aligned(const char* op, const char* what, const torch::Tensor& x) {
  require_rows(op, what, x);
  bool aligned = x.storage_offset() % kAlignment == 0;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) {
    // The backward pass looks at the stride of a single head, too.
    const bool counts = x.size(d) > 1 || (d == kHeads && x.numel() > 0);
    aligned = aligned && (!counts || x.stride(d) % kAlignment == 0);
  }
  require(
      aligned,
      op,
      c10::str(
          what, " aligned to ", kAlignment, " elements, not ", x.strides()));
}

void check_tensors(const char* op, const EfficientCall& x) {
  require(
      x.query.dim() == 4 && x.key.dim() == 4 && x.value.dim() == 4,
      op,
      "query, key and value of rank 4");
  require_aligned(op, "query", x.query);
  require_aligned(op, "key", x.key);
  require_aligned(op, "value", x.value);
  const auto dtype = x.query.scalar_type();
  require(
      (dtype == torch::kFloat || dtype == torch::kHalf ||
       dtype == torch::kBFloat16) &&
          x.key.scalar_type() == dtype && x.value.scalar_type() == dtype,
      op,
      "query, key and value of one dtype, float32, float16 or bfloat16");
  require(
      x.key.size(0) == x.query.size(0) && x.value.size(0) == x.query.size(0) &&
          x.key.size(2) == x.query.size(2) &&
          x.value.size(2) == x.query.size(2) &&
          x.key.size(1) == x.value.size(1) && x.key.size(3) == x.query.size(3),
      op,
      c10::str(
          "sizes that agree, with as many key as query heads, not ",
          x.query.sizes(),
          x.key.sizes(),
          x.value.sizes()));
  require(x.dropout >= 0 && x.dropout < 1, op, "dropout in [0, 1)");
}

void check_masks(const char* op, const EfficientCall& x) {
  require(
      x.mask_type >= 0 && x.mask_type <= 2, op, "custom_mask_type 0, 1 or 2");
  require(
      !x.window || *x.window <= 0 || x.mask_type != 0,
      op,
      "a window_size with a causal custom_mask_type only");
  // Before 2.15 CUDA's kernel hides other keys than these calls ask for.
  const bool packed = x.query_starts.defined();
  require(
      packed || x.mask_type != 2 || x.query.size(1) <= x.key.size(1),
      op,
      "no more queries than keys with a causal mask from the bottom right");
  const auto by_heads = [](const torch::Tensor& keys) {
    return keys.size(2) > 1 && keys.stride(2) == 0;
  };
  require(
      x.query.size(1) == 1 || !by_heads(x.key) || !by_heads(x.value),
      op,
      "keys that differ in memory for each head");
  if (!x.bias.defined()) {
    return;
  }
  require(
      x.bias.scalar_type() == x.query.scalar_type(),
      op,
      "a bias of the query's dtype");
  const Sizes sizes{
      x.query.size(0), x.query.size(2), x.query.size(1), x.key.size(1)};
  require(
      x.bias.sizes() == at::IntArrayRef(sizes),
      op,
      c10::str("a bias of sizes ", sizes, ", not ", x.bias.sizes()));
  require_aligned(op, "bias", x.bias);
}

void check_packed(const char* op, const EfficientCall& x) {
  require(
      x.query_starts.defined() == x.key_starts.defined(),
      op,
      "cu_seqlens_q and cu_seqlens_k, or neither");
  require(
      x.query_starts.defined() || !x.keys_used.defined(),
      op,
      "seqlen_k with cu_seqlens only");
  if (!x.query_starts.defined()) {
    return;
  }
  require(x.query.size(0) == 1, op, "a batch of 1 with cu_seqlens");
  require(!x.bias.defined(), op, "no bias with cu_seqlens");
  require(
      x.most_queries && x.most_keys,
      op,
      "max_seqlen_q and max_seqlen_k with cu_seqlens");
  const auto B = x.query_starts.numel();
  require_counts(op, "cu_seqlens_q", x.query_starts, B);
  require_counts(op, "cu_seqlens_k", x.key_starts, B);
  if (x.keys_used.defined()) {
    require_counts(op, "seqlen_k", x.keys_used, B - 1);
  }
}

/// A call that is checked, with its sequences.
struct Efficient {
  Efficient(const char* op, const EfficientCall& x)
      : call(x), queries(0, 0), keys(0, 0) {
    check_tensors(op, x);
    check_masks(op, x);
    check_packed(op, x);
    if (packed()) {
      queries = TokenRows(x.query_starts, {});
      keys = TokenRows(x.key_starts, x.keys_used);
      require(
          queries.longest() <= *x.most_queries &&
              keys.longest() <= *x.most_keys,
          op,
          "sequences of at most max_seqlen_q and max_seqlen_k tokens");
    } else {
      queries = TokenRows(x.query.size(0), x.query.size(1));
      keys = TokenRows(x.query.size(0), x.key.size(1));
    }
  }

  bool packed() const {
    return call.query_starts.defined();
  }

  int64_t most_queries() const {
    return packed() ? *call.most_queries : call.query.size(1);
  }

  int64_t most_keys() const {
    return packed() ? *call.most_keys : call.key.size(1);
  }

  /// Returns the tokens of sequence i in x, (B, tokens, H, D).
  torch::Tensor rows(const TokenRows& of, const torch::Tensor& x, int64_t i)
      const {
    return of.of(packed() ? x[0] : x, i);
  }

  torch::Tensor logsumexp(const torch::Tensor& x, int64_t i) const {
    return x.select(0, i).narrow(1, 0, queries.length(i));
  }

  DefinedAttention sequence(int64_t i, int64_t seed) const {
    DefinedAttention a;
    a.query = to_double(rows(queries, call.query, i));
    a.key = to_double(rows(keys, call.key, i));
    a.value = to_double(rows(keys, call.value, i));
    if (call.bias.defined()) {
      a.bias = to_double(call.bias.select(0, i));
    }
    if (call.mask_type != 0) {
      a.window.right = 0;
      a.window.offset =
          call.mask_type == 1 ? 0 : keys.length(i) - queries.length(i);
      if (call.window && *call.window > 0) {
        a.window.left = *call.window - 1;
      }
    }
    a.scale = call.scale.value_or(
        1 / std::sqrt(static_cast<double>(call.query.size(-1))));
    a.kept = kept_by_dropout(
        {seed, call.dropout},
        i,
        {call.query.size(2), queries.length(i), keys.length(i)});
    a.empty_logsumexp = std::numeric_limits<double>::quiet_NaN();
    return a;
  }

  EfficientCall call;
  TokenRows queries;
  TokenRows keys;
};

EfficientCall read_call(OperatorArguments& arguments) {
  EfficientCall x;
  x.query = arguments.tensor("query");
  x.key = arguments.tensor("key");
  x.value = arguments.tensor("value");
  x.bias = arguments.tensor("bias");
  x.query_starts = arguments.tensor("cu_seqlens_q");
  x.key_starts = arguments.tensor("cu_seqlens_k");
  x.most_queries = arguments.optional_integer("max_seqlen_q");
  x.most_keys = arguments.optional_integer("max_seqlen_k");
  x.dropout = arguments.number("dropout_p");
  x.mask_type = arguments.integer("custom_mask_type");
  x.scale = arguments.optional_number("scale");
  x.window = arguments.optional_integer("window_size");
  return x;
}

OperatorResults forward(OperatorArguments& arguments) {
  auto call = read_call(arguments);
  call.wants_logsumexp = arguments.flag("compute_log_sumexp");
  call.keys_used = arguments.tensor("seqlen_k");
  arguments.check_all_read();
  const auto found = efficient_forward(call);
  return {
      found.output,
      found.logsumexp,
      found.seed,
      found.offset,
      found.most_queries,
      found.most_keys};
}

OperatorResults backward(OperatorArguments& arguments) {
  const auto call = read_call(arguments);
  const auto grad_output = arguments.tensor("grad_out_");
  EfficientOutput given;
  given.output = arguments.tensor("out");
  given.logsumexp = arguments.tensor("logsumexp");
  given.seed = arguments.tensor("philox_seed");
  given.offset = arguments.tensor("philox_offset");
  const auto wants_bias = arguments.flag("bias_requires_grad");
  // A hint of how to share the work.
  arguments.optional_integer("num_splits_key");
  arguments.check_all_read();
  const auto found = efficient_backward(call, grad_output, given, wants_bias);
  return {found.query, found.key, found.value, found.bias};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  implement<&forward>(library, "_efficient_attention_forward");
  implement<&backward>(library, "_efficient_attention_backward");
}

} // namespace

} // namespace efficient_kernel

EfficientOutput efficient_forward(const EfficientCall& call) {
  const efficient_kernel::Efficient all(efficient_kernel::kForward, call);
  const auto seed = call.dropout > 0 ? draw_seed() : 0;
  auto sizes = call.query.sizes().vec();
  sizes.back() = call.value.size(3);
  auto output = unwritten(sizes);
  auto logsumexp = unwritten(
      {all.queries.count(),
       call.query.size(2),
       efficient_kernel::padded_rows(all.most_queries())});
  for (int64_t i = 0; i < all.queries.count(); ++i) {
    const auto found = attention_by_definition(all.sequence(i, seed));
    all.rows(all.queries, output, i).copy_(found.output);
    all.logsumexp(logsumexp, i).copy_(found.logsumexp);
  }
  if (!call.wants_logsumexp) {
    logsumexp = logsumexp.narrow(2, 0, 0).clone();
  }
  return {
      to_device(output, call.query.scalar_type()),
      to_device(logsumexp, torch::kFloat),
      to_device(torch::full({}, seed, torch::kLong), torch::kLong),
      to_device(torch::zeros({}, torch::kLong), torch::kLong),
      all.most_queries(),
      all.most_keys()};
}

EfficientGradients efficient_backward(
    const EfficientCall& call,
    const torch::Tensor& grad_output,
    const EfficientOutput& given,
    bool wants_bias) {
  require(
      !call.window || *call.window <= 0 ||
          call.query.size(1) == call.key.size(1),
      efficient_kernel::kBackward,
      "as many queries as keys for the gradients of a window");
  const efficient_kernel::Efficient all(efficient_kernel::kBackward, call);
  const auto dtype = call.query.scalar_type();
  auto sizes = call.query.sizes().vec();
  sizes.back() = call.value.size(3);
  for (const auto& [name, x] :
       {std::pair("grad_out", grad_output), std::pair("out", given.output)}) {
    require(
        x.device() == device() && x.scalar_type() == dtype &&
            x.sizes() == at::IntArrayRef(sizes),
        efficient_kernel::kBackward,
        c10::str(name, " of the query's dtype and the output's sizes"));
  }
  require_rows(efficient_kernel::kBackward, "out", given.output);
  require_rows(efficient_kernel::kBackward, "logsumexp", given.logsumexp);
  require(
      given.logsumexp.scalar_type() == torch::kFloat &&
          given.logsumexp.dim() == 3 &&
          given.logsumexp.size(2) >= all.most_queries() &&
          given.logsumexp.stride(1) % efficient_kernel::kRowMultiple == 0,
      efficient_kernel::kBackward,
      "logsumexp of float32, with rows padded to a multiple of 32");
  const auto seed =
      call.dropout > 0 ? given.seed.to(torch::kCPU).item<int64_t>() : 0;
  auto query = unwritten(call.query.sizes());
  auto key = unwritten(call.key.sizes());
  auto value = unwritten(call.value.sizes());
  auto bias = call.bias.defined() ? unwritten(call.bias.sizes()) : call.bias;
  for (int64_t i = 0; i < all.queries.count(); ++i) {
    const auto found = gradients_by_definition(
        all.sequence(i, seed),
        to_double(all.rows(all.queries, grad_output, i)),
        {to_double(all.rows(all.queries, given.output, i)),
         to_double(all.logsumexp(given.logsumexp, i))});
    all.rows(all.queries, query, i).copy_(found.query);
    all.rows(all.keys, key, i).copy_(found.key);
    all.rows(all.keys, value, i).copy_(found.value);
    if (bias.defined()) {
      bias.select(0, i).copy_(found.bias);
    }
  }
  return {
      to_device(query, dtype),
      to_device(key, dtype),
      to_device(value, dtype),
      wants_bias && bias.defined() ? to_device(bias, dtype) : torch::Tensor()};
}

} // namespace torch_attention::testing
