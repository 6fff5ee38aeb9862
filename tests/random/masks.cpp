#include <random/magnitudes.h>
#include <random/problem.h>

#include <algorithm>
#include <utility>

// Evaluates masks of drawn expressions tile by tile and by tensors of all
// queries and keys, and compares attention with both.
namespace torch_attention::random {

namespace {

/// The sizes of a mask, and the positions of its queries and keys.
struct MaskSizes {
  int64_t B = 1;
  int64_t H = 1;
  int64_t T = 1;
  int64_t S = 1;
  torch::Tensor query_offsets; // (B)
  torch::Tensor key_offsets; // (B)

  torch::Tensor batch() const {
    return torch::arange(B).view({B, 1, 1, 1});
  }
  torch::Tensor head() const {
    return torch::arange(H).view({1, H, 1, 1});
  }
  torch::Tensor query() const {
    return query_offsets.view({B, 1, 1, 1}) + torch::arange(T).view({T, 1});
  }
  torch::Tensor key() const {
    return key_offsets.view({B, 1, 1, 1}) + torch::arange(S);
  }
  /// Returns a number larger than all positions.
  int64_t end() const {
    const auto end = [](const torch::Tensor& offsets, int64_t n) {
      return offsets.max().item<int64_t>() + n;
    };
    return std::max(end(query_offsets, T), end(key_offsets, S)) + 1;
  }
};

/// An expression, and what it says as bool that broadcasts to (B, H, T, S).
struct DrawnMask {
  MaskMod mod;
  torch::Tensor sees;
  std::string text;
};

DrawnMask draw_documents(Random& random, const MaskSizes& x) {
  const auto L = x.end();
  const auto rows = random.once_in(2) ? x.B : 1;
  const auto most = random.one_of<int64_t>({1, 2, 5, 40});
  auto ids = torch::randint(-1, most, {rows, L}, torch::kLong);
  if (random.once_in(2)) {
    ids = std::get<0>(ids.sort(1));
  }
  const auto at = [&](const torch::Tensor& table, const torch::Tensor& i) {
    return table.index({x.batch().remainder(rows), i});
  };
  if (random.once_in(4)) {
    const auto key_ids = torch::randint(-1, most, {rows, L}, torch::kLong);
    const auto q = at(ids, x.query());
    return {
        MaskMod::documents(ids, key_ids),
        q.eq(at(key_ids, x.key())).logical_and(q.ge(0)),
        "documents of two kinds"};
  }
  const auto q = at(ids, x.query());
  return {
      MaskMod::documents(
          rows == 1 && random.once_in(2) ? ids.squeeze(0).to(torch::kInt)
                                         : ids),
      q.eq(at(ids, x.key())).logical_and(q.ge(0)),
      c10::str("documents(", ids.sizes(), ")")};
}

DrawnMask draw_packed_documents(Random& random, const MaskSizes& x) {
  Sizes starts = {0};
  while (starts.back() < x.end()) {
    starts.push_back(starts.back() + random.integer(0, x.end() / 2 + 1));
  }
  const auto cu_seqlens = torch::tensor(starts, torch::kLong);
  const auto document_of = [&](const torch::Tensor& i) {
    return torch::searchsorted(
        cu_seqlens, i.contiguous(), /*out_int32=*/false, /*right=*/true);
  };
  return {
      MaskMod::packed_documents(cu_seqlens),
      document_of(x.query()).eq(document_of(x.key())),
      "packed_documents"};
}

DrawnMask draw_blocks(Random& random, const MaskSizes& x) {
  const auto query_size = random.integer(1, 150);
  const auto key_size = random.integer(1, 150);
  const auto B = random.once_in(2) ? x.B : 1;
  const auto H = random.once_in(2) ? x.H : 1;
  const auto sees =
      torch::rand({B, H, x.end() / query_size + 1, x.end() / key_size + 1})
          .lt(0.5);
  const auto block_of = [](const torch::Tensor& i, int64_t size) {
    return torch::floor_divide(i, size);
  };
  return {
      MaskMod::blocks(sees, query_size, key_size),
      sees.index(
          {x.batch().remainder(B),
           x.head().remainder(H),
           block_of(x.query(), query_size),
           block_of(x.key(), key_size)}),
      c10::str("blocks(", query_size, ", ", key_size, ")")};
}

DrawnMask draw_function(Random& random, const MaskSizes& x) {
  using Tensor = torch::Tensor;
  const std::vector<MaskMod::Function> functions = {
      [](const Tensor& b, const Tensor& h, const Tensor& q, const Tensor& k) {
        return (q * 7 + k * 3 + b + h).remainder(4).ne(0);
      },
      [](const Tensor& /*b*/, const Tensor& h, const Tensor& q, const Tensor&) {
        return (q + h).remainder(2).eq(0);
      },
      [](const Tensor& b, const Tensor&, const Tensor&, const Tensor& k) {
        return k.gt(b * 5);
      },
      [](const Tensor&, const Tensor&, const Tensor& q, const Tensor& k) {
        return k.lt(q).logical_or(k.eq(0));
      }};
  const auto i = random.integer(0, static_cast<int64_t>(functions.size()) - 1);
  const auto& function = functions[static_cast<size_t>(i)];
  return {
      MaskMod::function(function),
      function(x.batch(), x.head(), x.query(), x.key()),
      c10::str("function ", i)};
}

DrawnMask draw_rule(Random& random, const MaskSizes& x) {
  const auto q = x.query();
  const auto k = x.key();
  const auto distance = random.integer(1, x.end() + 2);
  const auto after = random.integer(0, x.end() + 2);
  switch (random.integer(0, 9)) {
    case 0:
      return {MaskMod::causal(), k.le(q), "causal"};
    case 1:
      return {
          MaskMod::window(distance),
          k.gt(q - distance),
          c10::str("window(", distance, ")")};
    case 2:
      return {
          MaskMod::window(distance, after),
          k.gt(q - distance).logical_and(k.le(q + after)),
          c10::str("window(", distance, ", ", after, ")")};
    case 3:
      return {
          MaskMod::chunk(distance),
          torch::floor_divide(q, distance).eq(torch::floor_divide(k, distance)),
          c10::str("chunk(", distance, ")")};
    case 4:
      return {
          MaskMod::prefix(after), k.lt(after), c10::str("prefix(", after, ")")};
    case 5: {
      const auto lengths = torch::randint(-1, x.end() + 2, {x.B}, torch::kLong);
      return {
          MaskMod::prefix(lengths),
          k.lt(lengths.view({x.B, 1, 1, 1})),
          "prefix(lengths)"};
    }
    case 6:
      return draw_packed_documents(random, x);
    case 7:
      return draw_documents(random, x);
    case 8:
      return draw_blocks(random, x);
    default:
      return draw_function(random, x);
  }
}

DrawnMask draw_mask(Random& random, const MaskSizes& x, int64_t depth) {
  if (depth == 0 || random.once_in(3)) {
    return draw_rule(random, x);
  }
  const auto a = draw_mask(random, x, depth - 1);
  if (random.once_in(4)) {
    return {~a.mod, a.sees.logical_not(), "~" + a.text};
  }
  const auto b = draw_mask(random, x, depth - 1);
  const auto text = [&](const char* op) {
    return "(" + a.text + op + b.text + ")";
  };
  return random.once_in(2)
      ? DrawnMask{a.mod & b.mod, a.sees.logical_and(b.sees), text(" & ")}
      : DrawnMask{a.mod | b.mod, a.sees.logical_or(b.sees), text(" | ")};
}

/// Returns the mask of a drawn expression, and the same as bool (B, H, T, S),
/// true hides; throws a Failure if they differ.
std::pair<BlockMask, torch::Tensor> drawn_block_mask(
    Random& random,
    MaskSizes x) {
  const auto offsets = [&](int64_t most) {
    return torch::randint(0, most + 1, {x.B}, torch::kLong);
  };
  const bool moved = x.T != x.S || random.once_in(2);
  x.query_offsets = offsets(moved ? std::max<int64_t>(x.S, 1) : 0);
  x.key_offsets = offsets(moved && random.once_in(2) ? 70 : 0);
  const auto drawn = draw_mask(random, x, random.integer(0, 3));
  random.describe(random.description() + ", block_mask " + drawn.text);
  auto options = BlockMaskOptions(x.T, x.S).batch_size(x.B).num_heads(x.H);
  if (moved) {
    options.query_offsets(x.query_offsets).key_offsets(x.key_offsets);
  }
  const BlockMask mask(drawn.mod, options);
  const auto hidden =
      drawn.sees.expand({x.B, x.H, x.T, x.S}).logical_not().contiguous();
  if (!mask.hidden().equal(hidden) ||
      !BlockMask::unpack(mask.packed().clone()).hidden().equal(hidden)) {
    fail("the mask of ", drawn.text, " differs");
  }
  return {mask, hidden};
}

/// Returns the sizes of masks for a problem, or of one for all sequences and
/// heads.
MaskSizes sizes_of(Random& random, const Problem& problem) {
  const auto& output = problem.grad_output;
  const auto inputs = problem.inputs(problem.bases);
  const bool is_packed = !problem.query_lengths.empty();
  const auto longest = [](const Sizes& lengths) {
    return *std::max_element(lengths.begin(), lengths.end());
  };
  MaskSizes x;
  x.T = is_packed ? longest(problem.query_lengths) : output.size(-2);
  x.S = is_packed ? longest(problem.key_lengths) : inputs[1].size(-2);
  const auto& options = problem.options;
  const bool shares_without_batch = options.enable_gqa() &&
      !options.key_lengths().defined() && !options.query_offsets().defined();
  if (is_packed) {
    x.B = static_cast<int64_t>(problem.query_lengths.size());
    x.H = output.size(-3);
  } else if (output.dim() == 4) {
    x.B = output.size(0);
    x.H = output.size(1);
  } else if (output.dim() == 3) {
    (shares_without_batch ? x.H : x.B) = output.size(0);
  }
  x.B = x.B == 0 || random.once_in(2) ? 1 : x.B;
  x.H = x.H == 0 || random.once_in(2) ? 1 : x.H;
  return x;
}

} // namespace

void check_masks(Random& random) {
  MaskSizes x;
  x.B = random.integer(1, 3);
  x.H = random.integer(1, 3);
  x.T = random.integer(0, 200);
  x.S = random.once_in(2) ? x.T : random.integer(0, 1500);
  random.describe(c10::str("T ", x.T, ", S ", x.S));
  (void)drawn_block_mask(random, x);
}

void check_block_mask(Random& random) {
  auto problem =
      random.once_in(4) ? make_packed_problem(random) : make_problem(random);
  random.describe(problem.text());
  const bool is_packed = !problem.query_lengths.empty();
  if (problem.grad_output.dim() > 4 ||
      (is_packed && problem.grad_output.numel() == 0)) {
    return;
  }
  auto dense = problem;
  const auto [mask, hidden] =
      drawn_block_mask(random, sizes_of(random, problem));
  problem.options.block_mask(mask);
  auto as_scores = hidden;
  const auto dim = is_packed ? 4 : problem.grad_output.dim();
  if (dim == 3) {
    as_scores = hidden.size(1) == 1 ? hidden.squeeze(1) : hidden.squeeze(0);
  } else if (dim == 2) {
    as_scores = hidden.squeeze(0).squeeze(0);
  }
  const auto& own = dense.options.mask();
  dense.options.mask(own.defined() ? own.logical_or(as_scores) : as_scores);
  check_kernels(
      problem,
      dense,
      is_packed ? &Problem::attend_one_by_one : &Problem::attend);
}

} // namespace torch_attention::random
