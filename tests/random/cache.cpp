#include <random/bounds.h>
#include <random/tensors.h>

#include <torch_attention/torch_attention.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

// Compares any order of a cache's operations with `forward` of the whole texts.
namespace torch_attention::random {

namespace {

constexpr int64_t kContext = 200;

MultiHeadAttentionOptions make_options(Random& random) {
  const auto kv_heads = random.integer(1, 3);
  const auto heads = kv_heads * random.integer(1, 3);
  const auto head_dim = 2 * random.integer(1, 9);
  MultiHeadAttentionOptions options(
      random.integer(1, 12), heads * head_dim, kContext, heads);
  options.num_kv_heads(kv_heads).qkv_bias(random.once_in(2));
  if (random.once_in(3)) {
    options.head_dim(2 * random.integer(1, 9));
  }
  if (random.once_in(3)) {
    options.value_dim(random.integer(1, 12));
  }
  if (random.once_in(4)) {
    options.qk_norm(
        HeadNormOptions(
            random.one_of({HeadNormKind::kRms, HeadNormKind::kLayer}))
            .eps(1e-3)
            .bias(random.once_in(2)));
  }
  if (random.once_in(4)) {
    options.output_gate(OutputGateOptions());
  }
  options.alibi(random.once_in(3)).register_mask(false);
  options.kernel(
      random.one_of({Kernel::kAuto, Kernel::kFused, Kernel::kReference}));
  if (random.once_in(2)) {
    options.window(random.integer(1, 20));
  } else if (random.once_in(2)) {
    options.chunk(random.integer(1, 20));
  }
  options.sinks(random.once_in(4));
  if (random.once_in(4)) {
    options.temperature(TemperatureOptions(random.integer(1, 20)));
  }
  if (random.once_in(4)) {
    options.clip_qkv(0.5);
  }
  if (random.once_in(2)) {
    options.rotary(RotaryOptions().pairing(
        random.one_of({RotaryPairing::kHalves, RotaryPairing::kInterleaved})));
  }
  if (random.once_in(4)) {
    options.softcap(5);
  }
  return options;
}

/// A cache and the texts that it holds.
class Decoding {
 public:
  explicit Decoding(Random& random)
      : random_(random),
        attention_(make_options(random)),
        batch_size_(random.integer(1, 4)),
        cache_(make_cache()),
        texts_(
            static_cast<size_t>(batch_size_),
            torch::zeros({0, attention_->options.d_in()}, torch::kDouble)) {
    attention_->to(torch::kDouble);
    attention_->eval();
    if (attention_->sinks.defined()) {
      const torch::NoGradGuard no_grad;
      attention_->sinks.normal_();
    }
    describe(
        attention_,
        " sequences ",
        batch_size_,
        " block ",
        cache_.options().block(),
        " threads ",
        at::get_num_threads(),
        ":");
  }

  void step() {
    switch (random_.integer(0, 9)) {
      case 0:
        truncate();
        break;
      case 1:
        truncate_each();
        break;
      case 2:
        reorder();
        break;
      case 3:
        if (random_.once_in(4)) {
          reset();
        }
        break;
      case 4:
        if (random_.once_in(4)) {
          change_dtype();
        }
        break;
      case 5:
        replace_by_copy();
        break;
      default:
        decode();
    }
    check_lengths();
  }

 private:
  /// Adds the next step to the description.
  template <typename... Parts>
  void describe(const Parts&... parts) {
    random_.describe(random_.description() + c10::str(parts...));
  }

  KVCache make_cache() {
    auto options = attention_->make_cache(batch_size_).options();
    options.dtype(torch::kDouble).block(random_.integer(1, 16));
    return KVCache(options);
  }

  std::vector<int64_t> lengths() const {
    std::vector<int64_t> result;
    for (const auto& text : texts_) {
      result.push_back(text.size(0));
    }
    return result;
  }

  void decode() {
    const auto T =
        random_.once_in(3) ? random_.integer(0, 30) : random_.integer(1, 3);
    const auto x = torch::randn(
        {batch_size_, T, attention_->options.d_in()}, torch::kDouble);
    std::vector<int64_t> counts(static_cast<size_t>(batch_size_), T);
    torch::Tensor new_lengths;
    if (random_.once_in(3)) {
      for (auto& count : counts) {
        count = random_.integer(0, T);
      }
      new_lengths = torch::tensor(counts, torch::kLong);
    }
    describe(" decode ", T, at::IntArrayRef(counts));
    const auto before = lengths();
    for (size_t b = 0; b < counts.size(); ++b) {
      if (before[b] + counts[b] > kContext) {
        reset();
        return;
      }
    }
    const auto output = attention_->decode(x, cache_, new_lengths);
    for (size_t b = 0; b < counts.size(); ++b) {
      const auto row = static_cast<int64_t>(b);
      const auto added = x[row].slice(0, 0, counts[b]);
      texts_[b] = torch::cat({texts_[b], added});
      if (counts[b] == 0) {
        continue;
      }
      const torch::NoGradGuard no_grad;
      const auto expected =
          attention_->forward(texts_[b].unsqueeze(0))[0].slice(0, before[b]);
      check_same(
          c10::str("decode of sequence ", b),
          output[row].slice(0, 0, counts[b]),
          expected,
          1,
          tolerance_);
    }
  }

  void truncate() {
    const auto now = lengths();
    const auto longest = *std::max_element(now.begin(), now.end());
    const auto length = random_.once_in(8)
        ? 0
        : std::max<int64_t>(0, longest - random_.integer(0, 6));
    describe(" truncate ", length);
    truncate_to(
        std::vector<int64_t>(static_cast<size_t>(batch_size_), length),
        [&] { cache_.truncate(length); });
  }

  void truncate_each() {
    std::vector<int64_t> wanted;
    for (const auto length : lengths()) {
      wanted.push_back(std::max<int64_t>(0, length - random_.integer(-2, 6)));
    }
    describe(" truncate ", at::IntArrayRef(wanted));
    truncate_to(
        wanted, [&] { cache_.truncate(torch::tensor(wanted, torch::kInt)); });
  }

  /// Truncates. A cache with a window may refuse, and must then be unchanged.
  template <typename Truncate>
  void truncate_to(
      const std::vector<int64_t>& wanted,
      const Truncate& truncate_cache) {
    try {
      truncate_cache();
    } catch (const c10::Error&) {
      describe(" (refused)");
      if (!attention_->options.window() && !attention_->options.chunk()) {
        fail("truncate refused by a cache that keeps all");
      }
      return;
    }
    for (size_t b = 0; b < texts_.size(); ++b) {
      texts_[b] = texts_[b].slice(0, 0, wanted[b]);
    }
  }

  void reorder() {
    std::vector<int64_t> sources;
    for (int64_t b = 0; b < batch_size_; ++b) {
      sources.push_back(random_.integer(0, batch_size_ - 1));
    }
    describe(" reorder ", at::IntArrayRef(sources));
    cache_.reorder(torch::tensor(sources, torch::kLong));
    const auto before = texts_;
    for (size_t b = 0; b < texts_.size(); ++b) {
      texts_[b] = before[static_cast<size_t>(sources[b])];
    }
  }

  void reset() {
    describe(" reset");
    cache_.reset();
    for (auto& text : texts_) {
      text = text.slice(0, 0, 0);
    }
  }

  void change_dtype() {
    const auto dtype = cache_.options().dtype() == torch::kDouble
        ? torch::kFloat
        : torch::kDouble;
    describe(" to ", dtype);
    cache_.to(dtype);
    tolerance_ = 1e-4;
  }

  void replace_by_copy() {
    describe(" copy");
    auto copy = cache_.clone();
    // Changes of the old cache must not reach the copy.
    cache_.truncate(0);
    cache_ = std::move(copy);
    if (random_.once_in(2)) {
      cache_.reserve(random_.integer(0, kContext));
    }
  }

  void check_lengths() const {
    const auto expected = torch::tensor(lengths(), torch::kLong);
    if (!cache_.lengths().equal(expected)) {
      fail("lengths differ");
    }
  }

  Random& random_;
  MultiHeadAttention attention_;
  int64_t batch_size_;
  KVCache cache_;
  std::vector<torch::Tensor> texts_;
  double tolerance_ = 1e-9;
};

} // namespace

void check_cache(Random& random) {
  Decoding decoding(random);
  const auto steps = random.integer(3, 25);
  for (int64_t i = 0; i < steps; ++i) {
    decoding.step();
  }
}

} // namespace torch_attention::random
