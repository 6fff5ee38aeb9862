#include <random/problem.h>

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>

namespace torch_attention::random {

namespace {

/// The sizes (leading..., heads, tokens, features); a rank of 2 or 3 has fewer.
struct Shapes {
  int64_t rank = 4;
  int64_t B = 1;
  int64_t H = 1;
  int64_t G = 1;
  int64_t T = 1;
  int64_t S = 1;
  int64_t D = 1;
  int64_t E = 1;
  bool shares_heads = false;
  /// empty unless sequences are packed; T and S are their sums
  Sizes query_lengths;
  Sizes key_lengths;

  bool packs() const {
    return !query_lengths.empty();
  }

  /// Return the sizes of the batch, padded if the sequences are packed.
  int64_t batch() const {
    return packs()  ? static_cast<int64_t>(query_lengths.size())
        : rank == 3 ? H
                    : B;
  }
  int64_t longest_query() const {
    return packs()
        ? *std::max_element(query_lengths.begin(), query_lengths.end())
        : T;
  }
  int64_t longest_key() const {
    return packs() ? *std::max_element(key_lengths.begin(), key_lengths.end())
                   : S;
  }
  Sizes scores() const {
    return packs() ? Sizes{batch(), H, longest_query(), longest_key()}
                   : of(H, T, S);
  }

  Sizes of(int64_t heads, int64_t tokens, int64_t features) const {
    Sizes sizes = {2, B, heads, tokens, features};
    return {sizes.end() - rank, sizes.end()};
  }
};

int64_t head_size(Random& random) {
  return random.one_of<int64_t>({1, 2, 3, 5, 8, 13, 16, 31, 32, 64, 80});
}

Shapes make_shapes(Random& random) {
  Shapes x;
  x.rank = random.one_of<int64_t>({4, 4, 4, 4, 3, 3, 2, 5});
  x.B = small_size(random);
  x.G = random.one_of<int64_t>({1, 1, 2, 3});
  x.shares_heads = x.rank > 2 && random.once_in(3);
  x.H = x.shares_heads ? x.G * random.one_of<int64_t>({1, 2, 3}) : x.G;
  x.T = num_tokens(random);
  x.S = random.once_in(3) ? x.T : num_tokens(random);
  x.D = head_size(random);
  x.E = random.once_in(2) ? x.D : head_size(random);
  // Keeps the memory at a few megabytes.
  while (x.B * x.H * x.T * x.S > (1 << 20)) {
    x.B = std::max<int64_t>(1, x.B / 2);
    (x.T > x.S ? x.T : x.S) /= 2;
  }
  return x;
}

/// Returns whether query, key and value can share a tensor (..., tokens, 3,
/// heads, features).
bool can_be_packed(const Shapes& x) {
  return x.rank == 4 && x.H == x.G && x.T == x.S && x.D == x.E;
}

void pack(Problem& problem, const Shapes& x) {
  const Sizes sizes = {x.B, x.T, 3, x.H, x.D};
  for (int64_t i = 0; i < 3; ++i) {
    problem.layouts.push_back(
        {sizes,
         [i](const torch::Tensor& base) {
           return base.select(2, i).transpose(1, 2);
         },
         "packed"});
  }
}

void lay_out(Random& random, Problem& problem, const Shapes& x) {
  if (can_be_packed(x) && random.once_in(4)) {
    pack(problem, x);
    problem.bases = {torch::randn(problem.layouts[0].base_sizes)};
    return;
  }
  auto keys = x.of(x.G, x.S, x.D);
  auto values = x.of(x.G, x.S, x.E);
  // Leading dimensions broadcast, except where heads are shared.
  if (x.rank >= 4 && random.once_in(6)) {
    const auto leading = x.rank - (x.shares_heads ? 3 : 2);
    const auto i = static_cast<size_t>(random.integer(0, leading - 1));
    keys[i] = 1;
    values[i] = random.once_in(2) ? 1 : values[i];
  }
  for (const auto& sizes : {x.of(x.H, x.T, x.D), keys, values}) {
    problem.layouts.push_back(any_layout(random, sizes));
    problem.bases.push_back(torch::randn(problem.layouts.back().base_sizes));
  }
}

/// Returns the number, or rarely one that 32 bits do not hold.
int64_t sometimes_wide(Random& random, int64_t number) {
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  return random.once_in(12) ? random.one_of(
                                  {number + (int64_t{1} << 32),
                                   number + (int64_t{1} << 31),
                                   int64_t{1} << 50,
                                   kMost})
                            : number;
}

torch::Tensor counts(Random& random, int64_t n, int64_t from, int64_t to) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < n; ++i) {
    values.push_back(sometimes_wide(random, random.integer(from, to)));
  }
  // The result is not always contiguous.
  const auto result = torch::tensor(values, torch::kLong);
  return random.once_in(3) ? torch::stack({result, result}, 1).select(1, 0)
                           : result;
}

void choose_positions(Random& random, Options& options, const Shapes& x) {
  const auto S = x.longest_key();
  const auto distance = [&](int64_t least) {
    return sometimes_wide(random, random.integer(least, S + 3));
  };
  options.causal(random.once_in(2));
  if (random.once_in(6)) {
    options.chunk(distance(1));
  } else if (random.once_in(3)) {
    options.window(distance(1));
  }
  // A window that is not causal needs window_after, too.
  if (!options.causal() && !options.chunk() &&
      (options.window() || random.once_in(6))) {
    options.window_after(distance(0));
  }
  if (x.rank == 3 || x.rank == 4) {
    if (random.once_in(4)) {
      options.key_lengths(counts(random, x.batch(), 0, S + 2));
    }
    if (random.once_in(4)) {
      options.query_offsets(counts(random, x.batch(), -2, S + 2));
    }
  }
}

torch::Tensor make_bias(Random& random, const Sizes& sizes) {
  const auto layout = any_layout(random, sizes);
  return layout.view(torch::randn(layout.base_sizes))
      .clone(torch::MemoryFormat::Preserve);
}

void choose_scores(Random& random, Problem& problem, const Shapes& x) {
  auto& options = problem.options;
  const auto scores = x.scores();
  if (random.once_in(3)) {
    options.scale(random.one_of({0.3, 1.0, 0.05, -0.5, 0.0}));
  }
  if (random.once_in(4)) {
    options.softcap(random.one_of({0.5, 3.0, 30.0}));
  }
  if (random.once_in(3)) {
    const auto layout = any_layout(random, broadcastable(random, scores));
    options.mask(layout.view(
        torch::rand(layout.base_sizes) < random.one_of({0.1, 0.5, 0.95})));
  }
  problem.has_bias = random.once_in(4);
  if (problem.has_bias) {
    auto bias = make_bias(random, broadcastable(random, scores));
    if (random.once_in(3)) {
      bias.masked_fill_(torch::rand(bias.sizes()) < 0.2, -INFINITY);
    } else if (random.once_in(3) && c10::elementSize(problem.dtype) >= 4) {
      // As old masks of models hide, whole keys too. Half precision rounds such
      // scores to 8 and more.
      const bool of_keys = bias.dim() > 0 && random.once_in(2);
      bias.masked_fill_(
          torch::rand(
              of_keys ? bias.sizes().slice(bias.dim() - 1) : bias.sizes()) <
              random.one_of({0.2, 0.7}),
          -1e4);
    }
    problem.bases.push_back(bias);
  }
  // Far from all keys the distances differ by less than rounding.
  const auto& offsets = options.query_offsets();
  const bool is_near = !offsets.defined() || offsets.numel() == 0 ||
      offsets.max().item<int64_t>() < (1 << 16);
  problem.has_slopes = x.rank == 4 && is_near && random.once_in(4);
  if (problem.has_slopes) {
    problem.bases.push_back(torch::rand({x.H}) * 0.5);
  }
  problem.has_sinks = x.rank == 4 && random.once_in(4);
  if (problem.has_sinks) {
    problem.bases.push_back(torch::randn({x.H}) * random.one_of({1.0, 5.0}));
  }
}

torch::ScalarType any_dtype(Random& random) {
  return random.one_of(
      {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf});
}

torch::Tensor starts_of(Random& random, const Sizes& lengths) {
  Sizes starts(lengths.size() + 1);
  std::partial_sum(lengths.begin(), lengths.end(), starts.begin() + 1);
  return torch::tensor(starts, torch::kLong)
      .to(random.one_of({torch::kInt, torch::kLong}));
}

Problem make(
    Random& random,
    const Shapes& x,
    torch::ScalarType dtype,
    torch::ScalarType added_dtype) {
  Problem problem;
  problem.dtype = dtype;
  problem.added_dtype = added_dtype;
  problem.query_lengths = x.query_lengths;
  problem.key_lengths = x.key_lengths;
  if (x.packs()) {
    problem.options.cu_seqlens(starts_of(random, x.query_lengths));
    if (x.query_lengths != x.key_lengths) {
      problem.options.cu_seqlens_k(starts_of(random, x.key_lengths));
    }
  }
  lay_out(random, problem, x);
  problem.options.enable_gqa(x.shares_heads);
  choose_positions(random, problem.options, x);
  choose_scores(random, problem, x);
  problem.wants_all = random.once_in(3);
  const auto extras = problem.num_added();
  for (size_t i = 0; i < problem.bases.size(); ++i) {
    auto& base = problem.bases[i];
    base = base.to(i + extras < problem.bases.size() ? dtype : added_dtype);
  }
  problem.grad_output = torch::randn(x.of(x.H, x.T, x.E)).to(dtype);
  return problem;
}

} // namespace

std::string Problem::text() const {
  std::ostringstream text;
  text << dtype;
  const auto given = inputs(bases);
  constexpr const char* kNames[] = {" query", " key", " value"};
  for (size_t i = 0; i < 3; ++i) {
    text << kNames[i] << given[i].sizes() << given[i].strides() << " "
         << layouts[i].text;
  }
  text << std::boolalpha << " gqa " << options.enable_gqa() << " causal "
       << options.causal() << " window " << options.window().value_or(0)
       << " window_after " << options.window_after().value_or(-1) << " chunk "
       << options.chunk().value_or(0) << " scale "
       << options.scale().value_or(NAN) << " softcap "
       << options.softcap().value_or(0);
  for (const auto& [name, tensor] :
       {std::pair("lengths", options.key_lengths()),
        std::pair("offsets", options.query_offsets())}) {
    if (tensor.defined()) {
      const auto numbers = tensor.contiguous();
      text << " " << name << " "
           << at::IntArrayRef(
                  numbers.const_data_ptr<int64_t>(),
                  static_cast<size_t>(numbers.numel()));
    }
  }
  if (options.mask().defined()) {
    text << " mask " << options.mask().sizes();
  }
  if (has_bias) {
    text << " bias " << bias(bases).sizes();
  }
  for (const auto& [name, lengths] :
       {std::pair("packed", query_lengths), std::pair("with", key_lengths)}) {
    if (!lengths.empty()) {
      text << " " << name << " " << at::IntArrayRef(lengths);
    }
  }
  text << " added " << added_dtype << " slopes " << has_slopes << " sinks "
       << has_sinks << " all gradients " << wants_all << " threads "
       << at::get_num_threads();
  return text.str();
}

Tensors Problem::inputs(const Tensors& of_bases) const {
  const bool packed = layouts[0].text == "packed";
  Tensors result;
  for (size_t i = 0; i < 3; ++i) {
    result.push_back(layouts[i].view(of_bases[packed ? 0 : i]));
  }
  return result;
}

torch::Tensor Problem::bias(const Tensors& of_bases) const {
  const auto after = 1 + static_cast<size_t>(has_slopes) + has_sinks;
  return has_bias ? of_bases[of_bases.size() - after] : torch::Tensor();
}

torch::Tensor Problem::slopes(const Tensors& of_bases) const {
  const auto after = 1 + static_cast<size_t>(has_sinks);
  return has_slopes ? of_bases[of_bases.size() - after] : torch::Tensor();
}

torch::Tensor Problem::sinks(const Tensors& of_bases) const {
  return has_sinks ? of_bases.back() : torch::Tensor();
}

Options Problem::all_options(const Tensors& of_bases) const {
  auto all = options;
  return all.bias(bias(of_bases))
      .alibi_slopes(slopes(of_bases))
      .sinks(sinks(of_bases));
}

torch::Tensor Problem::attend(const Tensors& of_bases, Kernel kernel) const {
  const auto x = inputs(of_bases);
  return functional::scaled_dot_product_attention(
      x[0], x[1], x[2], all_options(of_bases).kernel(kernel));
}

torch::Tensor Problem::attend_one_by_one(const Tensors& of_bases, Kernel kernel)
    const {
  const auto x = inputs(of_bases);
  const auto all = all_options(of_bases);
  Tensors outputs;
  int64_t query = 0;
  int64_t key = 0;
  for (size_t i = 0; i < query_lengths.size(); ++i) {
    const auto T = query_lengths[i];
    const auto S = key_lengths[i];
    const auto b = static_cast<int64_t>(i);
    const auto of_sequence = [&](const torch::Tensor& counts) {
      return counts.defined() ? counts.slice(0, b, b + 1) : counts;
    };
    // Parts of the scores of the padded batch, unless they are broadcast.
    const auto part = [&](torch::Tensor scores) {
      if (!scores.defined()) {
        return scores;
      }
      if (scores.dim() == 4 && scores.size(0) > 1) {
        scores = of_sequence(scores);
      }
      if (scores.dim() > 1 && scores.size(-2) > 1) {
        scores = scores.slice(-2, 0, T);
      }
      return scores.size(-1) > 1 ? scores.slice(-1, 0, S) : scores;
    };
    auto alone = all;
    alone.kernel(kernel)
        .cu_seqlens({})
        .cu_seqlens_k({})
        .key_lengths(of_sequence(all.key_lengths()))
        .query_offsets(of_sequence(all.query_offsets()))
        .mask(part(all.mask()))
        .bias(part(all.bias()));
    const auto rows =
        [](const torch::Tensor& tokens, int64_t first, int64_t n) {
          const auto own = tokens.narrow(-2, first, n);
          return own.dim() == 3 ? own.unsqueeze(0) : own;
        };
    outputs.push_back(functional::scaled_dot_product_attention(
        rows(x[0], query, T), rows(x[1], key, S), rows(x[2], key, S), alone));
    query += T;
    key += S;
  }
  return torch::cat(outputs, -2).view(grad_output.sizes());
}

torch::Tensor Problem::attend_by_function(
    const Tensors& of_bases,
    Kernel kernel) const {
  const auto x = inputs(of_bases);
  auto all = all_options(of_bases);
  const auto mask = all.mask();
  const auto added = all.bias();
  const auto cap = has_slopes ? 0.0 : all.softcap().value_or(0);
  all.mask({}).bias({}).kernel(kernel).scores([&](torch::Tensor scores) {
    if (cap > 0) {
      scores = torch::tanh(scores / cap) * cap;
    }
    scores = added.defined() ? scores + added : scores;
    return mask.defined() ? scores.masked_fill(mask, -INFINITY) : scores;
  });
  if (cap > 0) {
    all.softcap(std::nullopt);
  }
  return functional::scaled_dot_product_attention(x[0], x[1], x[2], all);
}

Tensors Problem::leaves(torch::ScalarType of_dtype) const {
  Tensors result;
  const auto of_added = of_dtype == dtype ? added_dtype : of_dtype;
  for (size_t i = 0; i < bases.size(); ++i) {
    const bool is_added = i + num_added() >= bases.size();
    result.push_back(
        bases[i].detach().to(is_added ? of_added : of_dtype, false, true));
    result.back().requires_grad_(wants_all || !is_added);
  }
  return result;
}

Tensors Problem::wanted(const Tensors& leaves) const {
  Tensors result;
  std::copy_if(
      leaves.begin(),
      leaves.end(),
      std::back_inserter(result),
      [](const auto& x) { return x.requires_grad(); });
  return result;
}

Tensors compute(
    const Problem& problem,
    torch::ScalarType dtype,
    Kernel kernel,
    Attend attend) {
  const auto leaves = problem.leaves(dtype);
  const auto output = (problem.*attend)(leaves, kernel);
  Tensors results = {output.detach()};
  const auto gradients = torch::autograd::grad(
      {output}, problem.wanted(leaves), {problem.grad_output.to(dtype)});
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

Problem make_problem(Random& random) {
  const auto dtype = any_dtype(random);
  const auto added_dtype = random.once_in(4) ? any_dtype(random) : dtype;
  return make(random, make_shapes(random), dtype, added_dtype);
}

Problem make_packed_problem(Random& random) {
  auto x = make_shapes(random);
  x.rank = random.one_of<int64_t>({3, 4, 4});
  x.B = 1;
  const bool has_context = random.once_in(3);
  const auto most = random.one_of<int64_t>({3, 20, 150});
  const auto length = [&] {
    return random.once_in(6) ? random.integer(0, 1) : random.integer(1, most);
  };
  const auto count = random.integer(1, 6);
  for (int64_t i = 0; i < count; ++i) {
    x.query_lengths.push_back(length());
    x.key_lengths.push_back(has_context ? length() : x.query_lengths.back());
  }
  x.T = std::accumulate(
      x.query_lengths.begin(), x.query_lengths.end(), int64_t{0});
  x.S = std::accumulate(x.key_lengths.begin(), x.key_lengths.end(), int64_t{0});
  const auto dtype = any_dtype(random);
  return make(random, x, dtype, dtype);
}

Problem make_small_problem(Random& random) {
  auto x = make_shapes(random);
  x.rank = 4;
  x.B = std::min<int64_t>(x.B, 3);
  x.T = random.once_in(4) ? random.integer(1, 70) : random.integer(1, 9);
  x.S = random.once_in(4) ? random.integer(1, 70) : random.integer(1, 9);
  return make(random, x, torch::kDouble, torch::kDouble);
}

} // namespace torch_attention::random
