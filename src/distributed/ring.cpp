#include <torch_attention/distributed/sequence_parallel.h>

#include <check.h>
#include <distributed/communication.h>
#include <distributed/ring_blocks.h>
#include <distributed/tokens.h>
#include <kernels/backward_node.h>
#include <kernels/tiled.h>
#include <nn/functional/checked_attention.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace torch_attention::distributed {

namespace {

constexpr const char* kRing = "ring_attention";
constexpr const char* kKeysAndValues = "the exchange of keys and values";
constexpr const char* kTheirGradients =
    "the exchange of gradients of keys and values";

/// Tags keep the messages of different steps apart.
int keys_tag(int64_t step) {
  return static_cast<int>(2 * step);
}
int gradients_tag(int64_t step) {
  return static_cast<int>(2 * step + 1);
}

/// Keys and values of some spans, packed into one tensor for one message.
struct Packed {
  /// For each span keys (B, G, n, D), then values (B, G, n, E).
  torch::Tensor memory;
  std::vector<Span> spans;
  std::vector<torch::Tensor> keys;
  std::vector<torch::Tensor> values;
};

/// The distribution of the sequences, which all processes know.
class Ring {
 public:
  /// `num_queries` and `num_keys` count the tokens of whole sequences.
  Ring(
      RingCall call_of_user,
      const Group& group,
      const SequenceOptions& sequence,
      int64_t num_queries,
      int64_t num_keys)
      : call(std::move(call_of_user)),
        group_(group),
        sequence_(sequence),
        num_queries_(num_queries),
        num_keys_(num_keys) {
    call.queries = queries(rank());
    own_keys = keys(rank());
  }

  int64_t size() const {
    return group_->getSize();
  }
  /// Returns the number of processes whose keys this one attends to.
  int64_t steps() const {
    return sequence_.whole_context() ? 1 : size();
  }
  int64_t rank() const {
    return group_->getRank();
  }
  const Group& group() const {
    return group_;
  }

  /// Return the process `step` before this one, and the one `step` after it.
  int64_t before(int64_t step) const {
    return (rank() - step + size()) % size();
  }
  int64_t after(int64_t step) const {
    return (rank() + step) % size();
  }

  /// Return the tokens of a process.
  std::vector<Span> queries(int64_t process) const {
    return spans_of(kRing, num_queries_, process, size(), sequence_.layout());
  }
  std::vector<Span> keys(int64_t process) const {
    if (sequence_.whole_context()) {
      return {{0, num_keys_}};
    }
    return spans_of(kRing, num_keys_, process, size(), sequence_.layout());
  }

  /// Returns the keys of `owner` that process `reader` sees, without empty
  /// spans.
  std::vector<Span> seen(int64_t reader, int64_t owner) const {
    std::vector<Span> result;
    for (const auto& span : keys(owner)) {
      const auto part = seen_keys(call, queries(reader), span);
      if (part.size() > 0) {
        result.push_back(part);
      }
    }
    return result;
  }

  RingCall call;
  /// In the order of the tensors.
  std::vector<Span> own_keys;

 private:
  Group group_;
  SequenceOptions sequence_;
  int64_t num_queries_;
  int64_t num_keys_;
};

/// Allocates memory for `spans` of keys and values with these sizes and dtype.
Packed pack(
    const torch::Tensor& key,
    const torch::Tensor& value,
    std::vector<Span> spans) {
  Packed result;
  result.spans = std::move(spans);
  const auto each = key.size(0) * key.size(1);
  int64_t tokens = 0;
  for (const auto& span : result.spans) {
    tokens += span.size();
  }
  const auto D = key.size(3);
  const auto E = value.size(3);
  result.memory = torch::empty({each * tokens * (D + E)}, key.options());
  int64_t begin = 0;
  const auto part = [&](const Span& span, int64_t head_dim) {
    const auto numel = each * span.size() * head_dim;
    begin += numel;
    return result.memory.narrow(0, begin - numel, numel)
        .view({key.size(0), key.size(1), span.size(), head_dim});
  };
  for (const auto& span : result.spans) {
    result.keys.push_back(part(span, D));
    result.values.push_back(part(span, E));
  }
  return result;
}

/// Returns the index of `part`, which lies in one of this process's spans,
/// among this process's tokens.
int64_t place_of(const std::vector<Span>& own, const Span& part) {
  int64_t place = 0;
  for (const auto& span : own) {
    if (part.start >= span.start && part.end <= span.end) {
      return place + part.start - span.start;
    }
    place += span.size();
  }
  TORCH_INTERNAL_ASSERT(false, "the part of keys is not an own one");
}

/// The data that one step receives, and the function that waits for it.
struct Step {
  Packed received;
  Wait wait;
};

/// Starts to send this process's keys and values to the process `step` after
/// it, and to receive keys and values of the process `step` before it.
Step start_keys(
    const Ring& ring,
    const torch::Tensor& key,
    const torch::Tensor& value,
    int64_t step) {
  const auto to = ring.after(step);
  const auto from = ring.before(step);
  Step result;
  result.received = pack(key, value, ring.seen(ring.rank(), from));
  auto sent = pack(key, value, ring.seen(to, ring.rank()));
  for (size_t i = 0; i < sent.spans.size(); ++i) {
    const auto& span = sent.spans[i];
    const auto place = place_of(ring.own_keys, span);
    sent.keys[i].copy_(key.narrow(2, place, span.size()));
    sent.values[i].copy_(value.narrow(2, place, span.size()));
  }
  std::vector<Message> out;
  std::vector<Message> in;
  if (sent.memory.numel() > 0) {
    out.push_back({sent.memory, to});
  }
  if (result.received.memory.numel() > 0) {
    in.push_back({result.received.memory, from});
  }
  result.wait = exchange(ring.group(), out, in, kKeysAndValues, keys_tag(step));
  return result;
}

RowSums forward(
    const Ring& ring,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value) {
  auto sums = no_keys(query, value.size(3));
  int64_t place = 0;
  Step next;
  if (ring.steps() > 1) {
    next = start_keys(ring, key, value, 1);
  }
  for (const auto& span : ring.own_keys) {
    add_keys(
        ring.call,
        query,
        key.narrow(2, place, span.size()),
        value.narrow(2, place, span.size()),
        span,
        sums);
    place += span.size();
  }
  for (int64_t step = 1; step < ring.steps(); ++step) {
    next.wait();
    const auto now = std::move(next.received);
    if (step + 1 < ring.steps()) {
      next = start_keys(ring, key, value, step + 1);
    }
    for (size_t i = 0; i < now.spans.size(); ++i) {
      add_keys(
          ring.call, query, now.keys[i], now.values[i], now.spans[i], sums);
    }
  }
  add_sinks(ring.call, sums);
  return sums;
}

/// Starts to receive gradients of this process's keys and values from the
/// process `step` after it, and to send others' to the process `step` before
/// it.
Step start_gradients(
    const Ring& ring,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Packed& sent,
    int64_t step) {
  Step result;
  result.received = pack(key, value, ring.seen(ring.after(step), ring.rank()));
  std::vector<Message> out;
  std::vector<Message> in;
  if (sent.memory.numel() > 0) {
    out.push_back({sent.memory, ring.before(step)});
  }
  if (result.received.memory.numel() > 0) {
    in.push_back({result.received.memory, ring.after(step)});
  }
  result.wait =
      exchange(ring.group(), out, in, kTheirGradients, gradients_tag(step));
  return result;
}

struct Gradients {
  QueryGradients of_queries;
  torch::Tensor key;
  torch::Tensor value;
};

Gradients backward(
    const Ring& ring,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const RowSums& sums,
    const torch::Tensor& grad_output,
    bool with_bias,
    bool with_slopes) {
  const auto wide = sums.sum.options();
  const auto zeros_for = [&](bool wanted, const torch::Tensor& x) {
    return wanted ? torch::zeros(x.sizes(), wide) : torch::Tensor();
  };
  Gradients result{
      {torch::zeros(query.sizes(), wide),
       zeros_for(with_bias, ring.call.bias),
       zeros_for(with_slopes, ring.call.alibi_slopes)},
      torch::zeros(key.sizes(), wide),
      torch::zeros(value.sizes(), wide)};
  const auto gradients_at = [&](const torch::Tensor& keys,
                                const torch::Tensor& values,
                                const Span& span) {
    return gradients_of_keys(
        ring.call,
        query,
        keys,
        values,
        span,
        sums,
        grad_output,
        result.of_queries);
  };
  const auto add = [&](const Span& span, const KeyGradients& gradients) {
    const auto place = place_of(ring.own_keys, span);
    result.key.narrow(2, place, span.size()).add_(gradients.key);
    result.value.narrow(2, place, span.size()).add_(gradients.value);
  };
  const auto finish = [&](Step& returned) {
    if (!returned.wait) {
      return;
    }
    returned.wait();
    const auto& packed = returned.received;
    for (size_t i = 0; i < packed.spans.size(); ++i) {
      add(packed.spans[i], {packed.keys[i], packed.values[i]});
    }
    returned = Step();
  };
  Step next;
  Step returned;
  if (ring.steps() > 1) {
    next = start_keys(ring, key, value, 1);
  }
  int64_t place = 0;
  for (const auto& span : ring.own_keys) {
    add(span,
        gradients_at(
            key.narrow(2, place, span.size()),
            value.narrow(2, place, span.size()),
            span));
    place += span.size();
  }
  for (int64_t step = 1; step < ring.steps(); ++step) {
    next.wait();
    const auto now = std::move(next.received);
    if (step + 1 < ring.steps()) {
      next = start_keys(ring, key, value, step + 1);
    }
    auto sent = pack(key, value, now.spans);
    for (size_t i = 0; i < now.spans.size(); ++i) {
      const auto gradients =
          gradients_at(now.keys[i], now.values[i], now.spans[i]);
      sent.keys[i].copy_(gradients.key);
      sent.values[i].copy_(gradients.value);
    }
    finish(returned);
    returned = start_gradients(ring, key, value, sent, step);
  }
  finish(returned);
  return result;
}

/// The inputs are query, key, value, sinks, bias and slopes; output, maximum,
/// sum, mask and key lengths are saved as well.
struct RingBackward {
  static constexpr const char* kName = "RingAttentionBackward";
  std::shared_ptr<const Ring> ring;

  kernels::variable_list operator()(
      const kernels::BackwardRequest& request) const {
    TORCH_CHECK(
        !request.by_operators,
        "ring_attention: its gradients cannot be differentiated again "
        "(create_graph); those of all_to_all_attention can");
    const torch::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto& x = request.saved;
    const auto query = x[0].detach();
    const auto key = x[1].detach();
    const auto value = x[2].detach();
    const RowSums sums{x[6], x[7], x[8]};
    const bool with_bias = request.wanted[4];
    const bool with_slopes = request.wanted[5];
    const auto gradients = backward(
        *ring,
        query,
        key,
        value,
        sums,
        request.grad_output,
        with_bias,
        with_slopes);
    kernels::variable_list result = {
        gradients.of_queries.query.to(query.scalar_type()),
        gradients.key.to(key.scalar_type()),
        gradients.value.to(value.scalar_type()),
        torch::Tensor(),
        torch::Tensor(),
        torch::Tensor()};
    if (request.wanted[3]) {
      result[3] = gradient_of_sinks(ring->call, sums, request.grad_output);
    }
    if (with_bias) {
      result[4] = gradients.of_queries.bias.to(ring->call.bias.scalar_type());
    }
    if (with_slopes) {
      result[5] =
          gradients.of_queries.slopes.to(ring->call.alibi_slopes.scalar_type());
    }
    return result;
  }
};

/// Returns x in the dtype that autocast would give each part in the kernels.
/// Cast once, so that both passes compute with the same values.
torch::Tensor as_autocast(const torch::Tensor& x) {
  return at::autocast::is_autocast_enabled(at::kCPU)
      ? at::autocast::cached_cast(
            at::autocast::get_autocast_dtype(at::kCPU), x, at::kCPU)
      : x;
}

double dropout_of(
    const functional::ScaledDotProductAttentionFuncOptions& options) {
  return options.training() ? options.dropout() : 0.0;
}

/// Checks the spans of a process, which dropout restricts.
void check_pieces(
    const std::vector<Span>& pieces,
    int64_t whole,
    int64_t divisor) {
  const auto size = pieces.front().size();
  TORCH_ATTENTION_CHECK(
      size == whole || size % divisor == 0,
      "ring_attention: expected, with dropout, pieces of sequences whose "
      "number of tokens is divisible by {}, but got {} of {}",
      divisor,
      size,
      whole);
}

void check_ring(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options,
    const SequenceOptions& sequence) {
  TORCH_ATTENTION_CHECK(
      query.is_cpu(),
      "ring_attention: expected tensors on the CPU, but got {}; "
      "all_to_all_attention takes those of any device",
      query.device());
  const auto [T, S] = whole_sizes(query, key, group, sequence);
  const auto pieces = [&](int64_t whole) {
    return spans_of(
        kRing, whole, group->getRank(), group->getSize(), sequence.layout());
  };
  const auto queries = pieces(T);
  const auto keys =
      sequence.whole_context() ? std::vector<Span>{{0, S}} : pieces(S);
  if (dropout_of(options) > 0) {
    check_pieces(keys, S, kDropoutKeys);
    check_pieces(queries, T, kDropoutQueries);
  }
  check_scores(kRing, options, query, S);
}

/// Checks the options as if this process's tokens were whole sequences, and
/// returns the call. Key lengths, mask and bias cover the tokens of all
/// processes.
RingCall call_of(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const functional::ScaledDotProductAttentionFuncOptions& options) {
  auto of_own = options;
  of_own.mask({}).bias({});
  const auto a =
      functional::detail::checked_attention(query, key, value, of_own);
  TORCH_CHECK(
      kernels::is_tiled(a),
      "ring_attention: expected plain tensors of float32, float64, "
      "bfloat16 or float16");
  TORCH_ATTENTION_CHECK(
      !options.mask().defined() || options.mask().scalar_type() == torch::kBool,
      "ring_attention: expected a bool mask (true hides), but got {}",
      options.mask().scalar_type());
  RingCall call;
  call.rule = a.rule;
  call.alibi_slopes = a.alibi_slopes;
  call.sinks = a.sinks;
  call.key_lengths = a.key_lengths;
  call.mask = options.mask();
  call.bias = options.bias();
  call.dropout = a.dropout;
  return call;
}

} // namespace

torch::Tensor ring_attention(
    const torch::Tensor& query_of_user,
    const torch::Tensor& key_of_user,
    const torch::Tensor& value_of_user,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options,
    const SequenceOptions& sequence) {
  const auto query = as_autocast(query_of_user);
  const auto key = as_autocast(key_of_user);
  const auto value = as_autocast(value_of_user);
  RingCall call;
  check_call(kRing, query, key, value, group, options, sequence, [&] {
    check_ring(query, key, group, options, sequence);
    call = call_of(query, key, value, options);
  });
  if (call.dropout > 0) {
    call.dropout_seed = kernels::draw_seed();
  }
  const auto sinks = call.sinks;
  const auto bias = call.bias;
  const auto slopes = call.alibi_slopes;
  for (auto* x : {&call.alibi_slopes, &call.sinks, &call.bias}) {
    *x = x->defined() ? x->detach() : *x;
  }
  const auto [T, S] = whole_sizes(query, key, group, sequence);
  const auto ring =
      std::make_shared<const Ring>(std::move(call), group, sequence, T, S);
  RowSums sums;
  torch::Tensor output;
  {
    const torch::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView guard;
    sums = forward(*ring, query.detach(), key.detach(), value.detach());
    output = sums.output.to(query.scalar_type());
    if (output.is_same(sums.output)) {
      // Autograd saves it, and a user may change the returned tensor.
      output = output.clone();
    }
  }
  if (kernels::is_recorded({&query, &key, &value, &sinks, &bias, &slopes})) {
    kernels::record_backward(
        RingBackward{ring},
        output,
        {&query, &key, &value, &sinks, &bias, &slopes},
        {&sums.output,
         &sums.maximum,
         &sums.sum,
         // Saved so that a change in place is an error.
         &ring->call.mask,
         &ring->call.key_lengths});
  }
  return output;
}

} // namespace torch_attention::distributed
