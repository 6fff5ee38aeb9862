#include <random/bounds.h>
#include <random/tensors.h>

#include <torch_attention/torch_attention.h>

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

// Compares whole modules of each class, by both kernels and in float64.
namespace torch_attention::random {

namespace {

using Tensors = std::vector<torch::Tensor>;

/// A module of any class and the function that calls it.
struct Called {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor&, const ForwardOptions&)>
      forward;
};

template <typename Holder>
Called called(Holder holder) {
  return {
      holder.ptr(),
      [holder](const torch::Tensor& x, const ForwardOptions& options) mutable {
        return holder(x, options);
      }};
}

/// Makes the same module for each kernel.
struct Maker {
  std::function<Called(Kernel)> make;
  int64_t d_in = 1;
  bool takes_2d = false;
  bool takes_packed = true;
  /// how many pairs of numbers of each head are rotated
  int64_t rotated_pairs = 0;
  /// Parts of the names of the matrices that make queries, and keys.
  std::array<const char*, 2> projections{"W_query", "W_key"};
  /// Rounding decides which numbers have a gradient.
  bool clips = false;
  std::string text;
};

/// Chooses how a head of `head_dim` numbers, which are even, is rotated.
RotaryOptions any_rotary(Random& random, int64_t head_dim) {
  RotaryOptions options;
  options
      .pairing(
          random.one_of({RotaryPairing::kHalves, RotaryPairing::kInterleaved}))
      .theta(random.one_of({10000.0, 100.0}));
  if (random.once_in(3)) {
    options.dim(2 * random.integer(1, head_dim / 2));
  }
  const auto dim = options.dim().value_or(head_dim);
  const auto scaling = random.one_of(
      {RotaryScaling::kLinear,
       RotaryScaling::kLinear,
       RotaryScaling::kLlama3,
       RotaryScaling::kYarn,
       RotaryScaling::kDynamic,
       RotaryScaling::kLongRope});
  if (scaling == RotaryScaling::kDynamic && dim == 2) {
    return options;
  }
  options.scaling(scaling).factor(random.number(1, 8));
  if (scaling != RotaryScaling::kLinear) {
    options.original_context_length(random.integer(8, 60));
  }
  if (scaling == RotaryScaling::kLongRope) {
    std::vector<double> factors(static_cast<size_t>(dim / 2), 1);
    options.short_factors(factors);
    for (auto& factor : factors) {
      factor = random.number(1, 5);
    }
    options.long_factors(factors);
  }
  return options;
}

HeadNormOptions any_norm(Random& random, bool rotated) {
  auto options =
      HeadNormOptions(random.one_of({HeadNormKind::kRms, HeadNormKind::kLayer}))
          .eps(1e-3)
          .scope(random.one_of(
              {HeadNormScope::kHead,
               HeadNormScope::kHeadWeights,
               HeadNormScope::kAllHeads}))
          .weight(!random.once_in(4));
  if (options.weight()) {
    options.unit_offset(random.once_in(3)).bias(random.once_in(3));
  }
  options.after_rotary(
      rotated && options.scope() != HeadNormScope::kAllHeads &&
      random.once_in(2));
  return options;
}

OutputGateOptions any_gate(Random& random) {
  return OutputGateOptions(
             random.one_of({GateScope::kElement, GateScope::kHead}))
      .function(
          random.one_of({GateFunction::kSigmoid, GateFunction::kSoftplus}));
}

/// Draws windows for options that have `causal`.
template <typename Options>
void choose_windows(Random& random, Options& options) {
  options.causal(!random.once_in(4));
  if (random.once_in(3)) {
    options.window(random.integer(1, 90));
  }
  // A window that is not causal needs window_after, too.
  if (!options.causal() && (options.window() || random.once_in(3))) {
    options.window_after(random.integer(0, 90));
  }
}

Maker make_self(Random& random, bool first_version) {
  Maker maker;
  maker.d_in = random.integer(1, 20);
  maker.takes_2d = true;
  SelfAttentionOptions options(maker.d_in, random.integer(1, 20));
  if (random.once_in(3)) {
    options.scale(0.3);
  }
  if (first_version) {
    maker.text = "SelfAttentionV1";
    maker.make = [options](Kernel kernel) mutable {
      return called(SelfAttentionV1(options.kernel(kernel)));
    };
    return maker;
  }
  options.qkv_bias(random.once_in(2));
  maker.text = "SelfAttentionV2";
  maker.make = [options](Kernel kernel) mutable {
    return called(SelfAttentionV2(options.kernel(kernel)));
  };
  return maker;
}

Maker make_causal(Random& random) {
  Maker maker;
  maker.d_in = random.integer(1, 20);
  CausalAttentionOptions options(maker.d_in, random.integer(1, 20), 300);
  options.qkv_bias(random.once_in(2));
  options.register_mask(random.once_in(2));
  choose_windows(random, options);
  maker.text = "CausalAttention";
  maker.make = [options](Kernel kernel) mutable {
    return called(CausalAttention(options.kernel(kernel)));
  };
  return maker;
}

Maker make_heads(Random& random, bool wrapper) {
  Maker maker;
  maker.d_in = random.integer(1, 40);
  const auto kv_heads = random.one_of<int64_t>({1, 2, 3});
  const auto heads = wrapper ? kv_heads : kv_heads * random.integer(1, 3);
  const auto head_dim = 2 * random.integer(1, 9);
  const auto set_shared = [&](auto& options) {
    options.qkv_bias(random.once_in(2));
    options.register_mask(random.once_in(2));
    choose_windows(random, options);
    if (random.once_in(4)) {
      options.scale(0.3);
    }
  };
  if (wrapper) {
    MultiHeadAttentionWrapperOptions options(maker.d_in, head_dim, 300, heads);
    set_shared(options);
    maker.text = "MultiHeadAttentionWrapper";
    maker.make = [options](Kernel kernel) mutable {
      return called(MultiHeadAttentionWrapper(options.kernel(kernel)));
    };
    return maker;
  }
  MultiHeadAttentionOptions options(maker.d_in, heads * head_dim, 300, heads);
  set_shared(options);
  options.num_kv_heads(kv_heads).out_proj(!random.once_in(4));
  if (random.once_in(3) && options.out_proj()) {
    options.head_dim(2 * random.integer(1, 20));
  }
  if (random.once_in(3) && options.out_proj()) {
    options.value_dim(random.integer(1, 40));
  }
  if (random.once_in(4)) {
    options.key_bias(!options.qkv_bias()).out_bias(false);
  }
  if (random.once_in(3)) {
    const auto size = options.head_dim().value_or(head_dim);
    options.rotary(any_rotary(random, size));
    maker.rotated_pairs = options.rotary()->dim().value_or(size) / 2;
  }
  if (random.once_in(4)) {
    options.qk_norm(any_norm(random, options.rotary().has_value()));
  }
  if (random.once_in(3)) {
    options.output_gate(any_gate(random));
  }
  if (random.once_in(4)) {
    options.out_norm(any_norm(random, /*rotated=*/false));
  }
  options.alibi(random.once_in(4)).sinks(random.once_in(4));
  options.query_scale(random.once_in(4));
  if (random.once_in(4)) {
    options.softcap(5);
  }
  if (random.once_in(5)) {
    options.window(std::nullopt).window_after(std::nullopt);
    options.chunk(random.integer(1, 90));
  }
  if (random.once_in(5)) {
    options.temperature(TemperatureOptions(random.integer(1, 40)));
  }
  maker.clips = random.once_in(5);
  if (maker.clips) {
    options.clip_qkv(0.5);
  }
  if (random.once_in(5)) {
    options.value_norm_eps(0.1).value_scale(0.6);
  }
  if (options.rotary() && !options.value_dim()) {
    options.rotate_values(random.once_in(4));
  }
  maker.make = [options](Kernel kernel) mutable {
    return called(MultiHeadAttention(options.kernel(kernel)));
  };
  std::ostringstream text;
  text << MultiHeadAttention(options);
  maker.text = text.str();
  return maker;
}

/// Attends from the first half of the tokens to the others, so that gradients
/// of the input are those of both inputs.
Maker make_cross(Random& random) {
  Maker maker;
  maker.takes_packed = false;
  maker.d_in = random.integer(1, 30);
  const auto kv_heads = random.one_of<int64_t>({1, 2, 3});
  const auto heads = kv_heads * random.integer(1, 3);
  const auto head_dim = random.integer(1, 20);
  CrossAttentionOptions options(
      maker.d_in, maker.d_in, heads * head_dim, heads);
  options.num_kv_heads(kv_heads)
      .qkv_bias(random.once_in(2))
      .out_proj(!random.once_in(4));
  if (random.once_in(3) && options.out_proj()) {
    options.head_dim(random.integer(1, 20)).value_dim(random.integer(1, 20));
  }
  if (random.once_in(4)) {
    options.scale(0.3);
  }
  if (random.once_in(4)) {
    options.softcap(5);
  }
  if (random.once_in(4)) {
    options.qk_norm(any_norm(random, /*rotated=*/false));
  }
  maker.make = [options](Kernel kernel) mutable {
    CrossAttention module(options.kernel(kernel));
    const auto forward =
        [module](const torch::Tensor& x, ForwardOptions call) mutable {
          const auto T = x.size(1) / 2;
          if (call.key_padding_mask().defined()) {
            call.key_padding_mask(call.key_padding_mask().slice(1, T));
          }
          return module(x.slice(1, 0, T), x.slice(1, T), call);
        };
    return Called{module.ptr(), forward};
  };
  std::ostringstream text;
  text << CrossAttention(options);
  maker.text = text.str();
  return maker;
}

Maker make_latent(Random& random) {
  Maker maker;
  maker.d_in = random.integer(1, 30);
  maker.projections = {"q_", "kv_"};
  LatentAttentionOptions options(
      maker.d_in, random.integer(1, 30), 300, random.integer(1, 4));
  options.kv_rank(random.integer(1, 12))
      .nope_dim(random.integer(1, 9))
      .rope_dim(2 * random.integer(1, 5))
      .value_dim(random.integer(1, 12))
      .bias(random.once_in(2))
      .norm_eps(1e-3)
      .causal(!random.once_in(4));
  if (random.once_in(2)) {
    options.query_rank(random.integer(1, 12));
  }
  if (random.once_in(2)) {
    options.rotary(any_rotary(random, options.rope_dim()));
  }
  maker.rotated_pairs =
      options.rotary()->dim().value_or(options.rope_dim()) / 2;
  if (random.once_in(4)) {
    options.query_scale(1.3).latent_scale(0.7).temperature(
        TemperatureOptions(random.integer(1, 40)));
  }
  maker.make = [options](Kernel kernel) mutable {
    return called(LatentAttention(options.kernel(kernel)));
  };
  std::ostringstream text;
  text << LatentAttention(options);
  maker.text = text.str();
  return maker;
}

Maker make_any(Random& random) {
  switch (random.integer(0, 8)) {
    case 0:
      return make_self(random, true);
    case 1:
      return make_self(random, false);
    case 2:
      return make_causal(random);
    case 3:
      return make_heads(random, true);
    case 4:
      return make_cross(random);
    case 5:
      return make_latent(random);
    default:
      return make_heads(random, false);
  }
}

/// Switches autocast as PyTorch's autocast does, during its lifetime.
class Autocast {
 public:
  explicit Autocast(bool enabled)
      : before_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, before_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  Autocast(Autocast&&) = delete;
  Autocast& operator=(Autocast&&) = delete;

 private:
  bool before_;
};

/// The arguments and settings of a call.
struct Call {
  torch::ScalarType dtype = torch::kFloat;
  bool autocast = false;
  bool training = false;
  bool recorded = true;
  torch::Tensor base;
  Layout layout;
  ForwardOptions options;
  torch::Tensor grad_output;
  uint64_t seed = 0;
};

/// Returns the output and the gradients of the input's memory and all
/// parameters.
Tensors compute(
    const Maker& maker,
    const Call& call,
    Kernel kernel,
    torch::ScalarType dtype) {
  torch::manual_seed(call.seed);
  const auto made = maker.make(kernel);
  // Rounds to the dtype of the call, also for float64.
  made.module->to(call.dtype);
  made.module->to(dtype);
  made.module->train(call.training);
  auto base = call.base.detach().to(dtype, false, true);
  const torch::AutoGradMode mode(call.recorded);
  base.requires_grad_(call.recorded);
  torch::Tensor output;
  {
    const Autocast autocast(call.autocast && dtype == call.dtype);
    output = made.forward(call.layout.view(base), call.options);
  }
  Tensors results = {output.detach()};
  if (call.recorded) {
    auto wanted = made.module->parameters();
    wanted.insert(wanted.begin(), base);
    const auto gradients = torch::autograd::grad(
        {output}, wanted, {call.grad_output.to(output.scalar_type())});
    results.insert(results.end(), gradients.begin(), gradients.end());
  }
  return results;
}

/// Returns the starts of sequences of any lengths in N tokens.
torch::Tensor starts_in(Random& random, int64_t N) {
  Sizes starts = {0, N};
  for (auto more = random.integer(0, 3); more > 0; --more) {
    starts.push_back(random.integer(0, N));
  }
  std::sort(starts.begin(), starts.end());
  return torch::tensor(starts, torch::kLong);
}

/// Draws mask, bias and positions or angles for x of `sizes`, (B, T, ...) or
/// (T, ...). Returns the names of those that it has drawn.
std::string add_arguments(
    Random& random,
    const Maker& maker,
    const Sizes& sizes,
    ForwardOptions& options) {
  const auto T = sizes[sizes.size() - 2];
  std::string text;
  if (random.once_in(4)) {
    options.mask(torch::rand({T, T}) < 0.2);
    text += " mask";
  }
  if (random.once_in(4)) {
    options.bias(torch::randn({T, T}, torch::kDouble).to(torch::kFloat));
    text += " bias";
  }
  // Each sequence has positions of its own, or all have the same.
  auto of_tokens = Sizes(sizes.begin(), sizes.end() - 1);
  if (of_tokens.size() == 2 && random.once_in(2)) {
    of_tokens.erase(of_tokens.begin());
  }
  if (random.once_in(4)) {
    options.positions(torch::randint(100, of_tokens, torch::kLong));
    text += " positions";
  } else if (maker.rotated_pairs > 0 && random.once_in(3)) {
    of_tokens.push_back(maker.rotated_pairs);
    const auto angles = 6.3 * torch::rand(of_tokens, torch::kDouble);
    options.rotary_cos(angles.cos().to(torch::kFloat))
        .rotary_sin(angles.sin().to(torch::kFloat));
    text += " angles";
  }
  return text;
}

/// Returns a bound of the scores' size: from the tokens and the two matrices
/// that make queries and keys of them.
double largest_score(const Maker& maker, const Call& call) {
  torch::manual_seed(call.seed);
  const torch::NoGradGuard no_grad;
  const auto module = maker.make(Kernel::kReference).module;
  const auto norm_of = [&](const char* name) {
    double largest = 1;
    for (const auto& item : module->named_parameters()) {
      if (item.value().dim() == 2 &&
          item.key().find(name) != std::string::npos) {
        largest = std::max(
            largest, torch::linalg_matrix_norm(item.value(), 2).item<double>());
      }
    }
    return largest;
  };
  const auto x = call.layout.view(call.base).to(torch::kDouble);
  const auto token = x.numel() == 0 ? 0.0 : x.norm(2, -1).max().item<double>();
  return token * token * norm_of(maker.projections[0]) *
      norm_of(maker.projections[1]);
}

/// Draws how a module is called, but for its input.
Call any_call(Random& random, const Maker& maker) {
  Call call;
  call.dtype = random.one_of(
      {torch::kFloat, torch::kFloat, torch::kDouble, torch::kBFloat16});
  call.autocast = call.dtype == torch::kFloat && random.once_in(4);
  // The first version's weights are all positive, and its scores so large that
  // in half precision rounding decides which weight is 1.
  if (maker.text == "SelfAttentionV1") {
    call.dtype = call.dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
    call.autocast = false;
  }
  if (maker.clips) {
    call.dtype = torch::kDouble;
    call.autocast = false;
  }
  call.training = random.once_in(2);
  call.recorded = random.once_in(2);
  call.seed = static_cast<uint64_t>(random.integer(0, 1 << 30));
  return call;
}

/// Draws the sizes of an input, (B, T, d_in) or (T, d_in).
Sizes any_sizes(Random& random, const Maker& maker) {
  Sizes sizes = {
      random.once_in(30) ? 0 : random.integer(1, 4),
      random.once_in(3) ? random.integer(30, 200) : random.integer(1, 20),
      maker.d_in};
  if (random.once_in(30)) {
    sizes[1] = 0;
  }
  if (maker.takes_2d && random.once_in(2)) {
    sizes.erase(sizes.begin());
  }
  return sizes;
}

/// Compares the kernels with operators in float64 and in the dtype of the call.
void check_kernels(const Maker& maker, const Call& call, const Sizes& sizes) {
  const auto condition = 10 + largest_score(maker, call);
  // Gradients of weights are sums over all tokens, those of the input over the
  // copies of what is expanded; they may cancel.
  const auto tokens =
      std::accumulate(sizes.begin(), sizes.end() - 1, 1.0, std::multiplies<>());
  const auto numbers = tokens * static_cast<double>(maker.d_in);
  const auto copies = std::max(
      1.0,
      numbers / static_cast<double>(std::max<int64_t>(1, call.base.numel())));
  const auto exact = compute(maker, call, Kernel::kReference, torch::kDouble);
  const auto reference = compute(maker, call, Kernel::kReference, call.dtype);
  for (const auto kernel : {Kernel::kFused, Kernel::kAuto}) {
    const auto fused = compute(maker, call, kernel, call.dtype);
    for (size_t i = 0; i < exact.size(); ++i) {
      Bound bound;
      bound.dtype = call.autocast ? torch::kBFloat16 : call.dtype;
      bound.condition = condition;
      // Sums of products of sums round more than one attention.
      const auto terms = i == 0 ? 1.0 : i == 1 ? copies : tokens;
      bound.magnitude = 4 * (1 + largest(exact[i])) * std::sqrt(terms);
      check_close(
          i == 0 ? "output" : c10::str("gradient ", i),
          fused[i],
          reference[i],
          exact[i],
          bound);
    }
  }
}

} // namespace

void check_module(Random& random) {
  const auto maker = make_any(random);
  auto call = any_call(random, maker);
  auto sizes = any_sizes(random, maker);
  const bool packed =
      maker.takes_packed && sizes.size() == 3 && random.once_in(4);
  const bool padded = !packed && random.once_in(3);
  if (packed) {
    sizes[0] = 1;
    call.options.cu_seqlens(starts_in(random, sizes[1]));
  }
  if (padded) {
    call.options.key_padding_mask(
        torch::rand(Sizes(sizes.begin(), sizes.end() - 1)) < 0.3);
  }
  // Packed sequences and contexts of other lengths need other shapes.
  std::string arguments;
  if (maker.takes_packed && !packed) {
    arguments = add_arguments(random, maker, sizes, call.options);
  }
  call.layout = any_layout(random, sizes);
  call.base = torch::randn(call.layout.base_sizes).to(call.dtype);
  // The shape of the output comes from the module itself.
  {
    const torch::NoGradGuard no_grad;
    auto shape =
        maker.make(Kernel::kReference).forward(torch::zeros(sizes), {});
    call.grad_output = torch::randn(shape.sizes()).to(call.dtype);
  }
  random.describe(c10::str(
      maker.text,
      padded       ? " padded"
          : packed ? " packed"
                   : "",
      arguments,
      " ",
      call.dtype,
      " autocast ",
      call.autocast,
      " training ",
      call.training,
      " recorded ",
      call.recorded,
      " input ",
      sizes,
      " ",
      call.layout.text,
      " threads ",
      at::get_num_threads()));
  check_kernels(maker, call, sizes);
}

} // namespace torch_attention::random
