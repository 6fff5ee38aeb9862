#include <torch_attention/nn/modules/relative_attention.h>

#include <check.h>
#include <kernels/heads.h>
#include <nn/checks.h>
#include <nn/modules/call.h>
#include <nn/modules/heads.h>
#include <nn/modules/projected.h>
#include <nn/modules/relative_positions.h>
#include <nn/score_rule.h>
#include <torch_attention/nn/functional/attention.h>
#include <undrawn_weights.h>

#include <torch/nn/init.h>

#include <ostream>

namespace torch_attention {

namespace {

constexpr const char* kRelative = "RelativeAttention";

using RelativeFuncOptions = functional::ScaledDotProductAttentionFuncOptions;

int64_t table_height_of(const RelativeAttentionOptions& options) {
  return options.table_height().value_or(options.height());
}

int64_t table_width_of(const RelativeAttentionOptions& options) {
  return options.table_width().value_or(options.width());
}

void check_sides(const RelativeAttentionOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 20;
  for (const auto side :
       {options.height(),
        options.width(),
        table_height_of(options),
        table_width_of(options)}) {
    TORCH_ATTENTION_CHECK(
        side > 0 && side <= kMost,
        "RelativeAttention: expected height, width, table_height and "
        "table_width in [1, {}], but got {}",
        kMost,
        side);
  }
}

detail::DistanceBuckets buckets_of(const RelativeAttentionOptions& options) {
  return {options.max_distance(), options.buckets()};
}

void check_disentangled(const RelativeAttentionOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 20;
  const auto buckets = options.buckets().value_or(2);
  TORCH_ATTENTION_CHECK(
      options.max_distance() > 0 && options.max_distance() <= kMost &&
          buckets > 1 && buckets <= kMost,
      "RelativeAttention: expected max_distance in [1, {}] and buckets in [2, "
      "{}], but got {} and {}",
      kMost,
      kMost,
      options.max_distance(),
      buckets);
  TORCH_ATTENTION_CHECK(
      !options.buckets() || options.max_distance() > buckets / 2 + 1,
      "RelativeAttention: expected max_distance above {} with buckets = {}, "
      "but got {}",
      buckets / 2 + 1,
      buckets,
      options.max_distance());
  TORCH_CHECK(
      options.content_to_position() || options.position_to_content(),
      "RelativeAttention: expected content_to_position or "
      "position_to_content with RelativeKind::kDisentangled, but got neither");
  TORCH_ATTENTION_CHECK(
      detail::num_kv_heads(options) == options.num_heads(),
      "RelativeAttention: expected as many key heads as query heads with "
      "RelativeKind::kDisentangled, but got num_heads = {}, num_kv_heads = {}",
      options.num_heads(),
      detail::num_kv_heads(options));
}

void check_kind(const RelativeAttentionOptions& options) {
  if (options.kind() == RelativeKind::kDisentangled) {
    check_disentangled(options);
    return;
  }
  if (options.kind() == RelativeKind::kSinusoids) {
    TORCH_ATTENTION_CHECK(
        options.d_in() % 2 == 0,
        "RelativeAttention: expected an even d_in, the size of sinusoids, but "
        "got {}",
        options.d_in());
    return;
  }
  if (options.kind() == RelativeKind::kRowsAndColumns) {
    check_sides(options);
    return;
  }
  constexpr int64_t kMost = int64_t{1} << 30;
  const auto fits = [](int64_t n) { return n >= 0 && n <= kMost; };
  TORCH_ATTENTION_CHECK(
      fits(options.left()) && fits(options.right()),
      "RelativeAttention: expected left and right in [0, {}], but got {} "
      "and {}",
      kMost,
      options.left(),
      options.right());
}

double scale_of(const RelativeAttentionOptions& options) {
  // Each product has as many summands as that of query and key.
  const auto products = options.kind() == RelativeKind::kDisentangled
      ? 1 + static_cast<int64_t>(options.content_to_position()) +
          static_cast<int64_t>(options.position_to_content())
      : 1;
  return options.rule().factor(detail::head_dim_of(options) * products);
}

/// Checks what is not checked with other rules. Options may change after the
/// module was made.
void check_chunks_and_softcap(const RelativeAttentionOptions& options) {
  TORCH_CHECK(
      !options.softcap(),
      "RelativeAttention: expected no softcap, which would not cap the "
      "products with positions");
  TORCH_ATTENTION_CHECK(
      options.chunks_before() >= 0 &&
          (options.chunk() || options.chunks_before() == 0),
      "RelativeAttention: expected chunks_before >= 0, and 0 without chunk, "
      "but got {}",
      options.chunks_before());
}

void check_options(const RelativeAttentionOptions& options) {
  detail::check_sizes(kRelative, options);
  checks::check_rule(kRelative, options.rule());
  check_chunks_and_softcap(options);
  check_kind(options);
}

/// Checks that no argument is set that would have no effect, or that changes
/// the tokens' positions.
void check_call(const ForwardOptions& call) {
  const auto check = [](const char* what, const torch::Tensor& x) {
    TORCH_ATTENTION_CHECK(
        !x.defined(),
        "RelativeAttention: expected sequences (B, T, d_in) whose tokens are "
        "at positions 0 to T - 1, but got {}",
        what);
  };
  check("cu_seqlens", call.cu_seqlens());
  check("cu_seqlens_k", call.cu_seqlens_k());
  check("positions", call.positions());
  check("rotary_cos", call.rotary_cos());
  check("rotary_sin", call.rotary_sin());
  check("visible_blocks", call.visible_blocks());
}

/// Checks that x (B, T, d_in) has the tokens of an image, if the options say
/// so.
void check_image(
    const RelativeAttentionOptions& options,
    const torch::Tensor& x) {
  TORCH_ATTENTION_CHECK(
      options.kind() != RelativeKind::kRowsAndColumns ||
          x.size(1) == options.height() * options.width(),
      "RelativeAttention: expected the tokens of images of {} x {}, but got x "
      "of {}",
      options.height(),
      options.width(),
      x.sizes());
}

/// Replaces the chunks by a mask of them and the chunks before.
void see_chunks_before(
    const RelativeAttentionOptions& options,
    const torch::Tensor& x,
    const ForwardOptions& call,
    RelativeFuncOptions& func) {
  func.chunk(std::nullopt);
  if (x.size(1) <= *options.chunk()) {
    return;
  }
  auto positions = call.key_padding_mask().defined()
      ? detail::positions_after_padding(call.key_padding_mask())
      : torch::Tensor();
  if (!positions.defined()) {
    positions =
        torch::arange(x.size(1), torch::device(x.device()).dtype(torch::kLong));
  }
  const auto hidden = detail::hidden_by_chunk(
      positions.to(x.device()), *options.chunk(), options.chunks_before());
  func.mask(func.mask().defined() ? func.mask().bitwise_or(hidden) : hidden);
}

/// Returns the options of functional attention for x (B, T, d_in), except the
/// kernel and the bias of the positions.
RelativeFuncOptions call_options_of(
    const RelativeAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  const auto& options = module.options;
  check_chunks_and_softcap(options);
  checks::check_input(kRelative, x, module.W_query->weight, options.d_in());
  check_image(options, x);
  check_call(call);
  auto func = detail::head_options(module);
  func.scale(scale_of(options));
  if (!detail::is_empty(call)) {
    const auto [B, T, S] = detail::call_sizes(kRelative, x, call);
    detail::set_call(kRelative, call, {B, options.num_heads(), T, S}, func);
  }
  if (options.chunks_before() > 0) {
    see_chunks_before(options, x, call, func);
  } else if (!detail::is_empty(call)) {
    detail::set_checked_chunks(kRelative, x, call, /*num_score_dims=*/4, func);
  }
  return func;
}

/// Returns the products of queries and keys with the projected embeddings of
/// their distances.
torch::Tensor scores_of_embeddings(
    RelativeAttentionImpl& module,
    const Projected& heads,
    double scale,
    Kernel kernel) {
  const auto& options = module.options;
  // Only embeddings that occur: few tokens have few distances.
  const auto embeddings = module.relative_embeddings
                              .index_select(
                                  0,
                                  detail::rows_of_distances(
                                      heads.queries.size(2),
                                      buckets_of(options),
                                      heads.queries.device()))
                              .unsqueeze(0);
  const auto project = [&](const torch::nn::Linear& shared,
                           const torch::nn::Linear& own) {
    const auto& layer = options.share_projections() ? shared : own;
    return kernels::split_heads(
               linear(layer, embeddings, kernel), options.num_heads())
        .squeeze(0);
  };
  torch::Tensor scores;
  if (options.content_to_position()) {
    scores = detail::scores_of_distances(
        heads.queries * scale, project(module.W_key, module.W_pos_key));
  }
  if (options.position_to_content()) {
    const auto of_keys = detail::scores_of_keys(
        heads.keys * scale, project(module.W_query, module.W_pos_query));
    scores = scores.defined() ? scores + of_keys : of_keys;
  }
  return scores;
}

/// Adds the products with the positions to the bias of `func`. Returns the
/// queries that are multiplied with keys.
torch::Tensor add_positions(
    RelativeAttentionImpl& module,
    const Projected& heads,
    Kernel kernel,
    RelativeFuncOptions& func) {
  const auto scale = *func.scale();
  const auto& queries = heads.queries;
  const auto T = queries.size(2);
  const auto& options = module.options;
  auto content = queries;
  torch::Tensor scores;
  if (options.kind() == RelativeKind::kLearned) {
    scores = detail::scores_of_learned(
        queries * scale,
        module.distance_embedding->weight,
        {options.left(), options.right(), options.last_first()});
  } else if (options.kind() == RelativeKind::kRowsAndColumns) {
    scores = detail::scores_of_image(
        queries,
        {module.rel_pos_h,
         module.rel_pos_w,
         options.height(),
         options.width()});
  } else if (options.kind() == RelativeKind::kDisentangled) {
    scores = scores_of_embeddings(module, heads, scale, kernel);
  } else {
    content =
        queries + module.pos_bias_u.to(queries.scalar_type()).unsqueeze(1);
    const auto sinusoids = detail::sinusoids_of_distances(
        T, options.d_in(), options.order(), queries.options());
    scores = detail::scores_of_distances(
        (queries + module.pos_bias_v.to(queries.scalar_type()).unsqueeze(1)) *
            scale,
        kernels::split_heads(
            linear(module.W_pos, sinusoids.unsqueeze(0), kernel),
            options.num_heads())
            .squeeze(0));
  }
  func.bias(func.bias().defined() ? func.bias() + scores : scores);
  return content;
}

Projected project_relative(
    RelativeAttentionImpl& module,
    const torch::Tensor& x,
    Kernel kernel,
    RelativeFuncOptions& func) {
  const auto& options = module.options;
  auto projected = project_linear(module, x, kernel);
  projected.queries =
      kernels::split_heads(projected.queries, options.num_heads());
  projected.keys =
      kernels::split_heads(projected.keys, detail::num_kv_heads(options));
  projected.values =
      kernels::split_heads(projected.values, detail::num_kv_heads(options));
  projected.queries = add_positions(module, projected, kernel, func);
  return projected;
}

/// Draws the parameters that are in no submodule.
void draw_tables(const RelativeAttentionImpl& module) {
  for (const auto& table : {module.rel_pos_h, module.rel_pos_w}) {
    if (table.defined()) {
      torch::nn::init::normal_(table, 0, /*std=*/0.02);
    }
  }
  if (module.relative_embeddings.defined()) {
    torch::nn::init::normal_(module.relative_embeddings);
  }
  for (const auto& bias : {module.pos_bias_u, module.pos_bias_v}) {
    if (bias.defined()) {
      torch::nn::init::xavier_uniform_(bias);
    }
  }
}

void print_disentangled(
    std::ostream& stream,
    const RelativeAttentionOptions& options) {
  stream << ", max_distance=" << options.max_distance();
  if (options.buckets()) {
    stream << ", buckets=" << *options.buckets();
  }
  if (!options.content_to_position()) {
    stream << ", content_to_position=false";
  }
  if (!options.position_to_content()) {
    stream << ", position_to_content=false";
  }
  if (!options.share_projections()) {
    stream << ", share_projections=false";
  }
}

} // namespace

RelativeAttentionImpl::RelativeAttentionImpl(
    int64_t d_in,
    int64_t d_out,
    int64_t num_heads)
    : RelativeAttentionImpl(RelativeAttentionOptions(d_in, d_out, num_heads)) {}

RelativeAttentionImpl::RelativeAttentionImpl(
    const RelativeAttentionOptions& options_)
    : options(options_) {
  RelativeAttentionImpl::reset();
}

void RelativeAttentionImpl::reset() {
  check_options(options);
  const auto H = options.num_heads();
  const auto D = detail::head_dim_of(options);
  const auto project =
      [&](const char* name, int64_t heads, const std::optional<bool>& bias) {
        return register_module(
            name,
            make_linear(
                options.d_in(), heads * D, bias.value_or(options.qkv_bias())));
      };
  W_query = project("W_query", H, options.query_bias());
  W_key = project("W_key", detail::num_kv_heads(options), options.key_bias());
  W_value =
      project("W_value", detail::num_kv_heads(options), options.value_bias());
  out_proj = register_module(
      "out_proj", make_linear(H * D, options.d_out(), options.out_bias()));
  if (options.kind() == RelativeKind::kLearned) {
    distance_embedding = register_module(
        "distance_embedding",
        make_embedding(options.left() + options.right() + 1, D));
  } else if (options.kind() == RelativeKind::kRowsAndColumns) {
    rel_pos_h = register_parameter(
        "rel_pos_h", torch::empty({2 * table_height_of(options) - 1, D}));
    rel_pos_w = register_parameter(
        "rel_pos_w", torch::empty({2 * table_width_of(options) - 1, D}));
  } else if (options.kind() == RelativeKind::kDisentangled) {
    relative_embeddings = register_parameter(
        "relative_embeddings",
        torch::empty({2 * buckets_of(options).span(), options.d_in()}));
    const bool has_own = !options.share_projections();
    if (has_own && options.content_to_position()) {
      W_pos_key = project("W_pos_key", H, options.key_bias());
    }
    if (has_own && options.position_to_content()) {
      W_pos_query = project("W_pos_query", H, options.query_bias());
    }
  } else {
    W_pos = project("W_pos", H, /*bias=*/false);
    pos_bias_u = register_parameter("pos_bias_u", torch::empty({H, D}));
    pos_bias_v = register_parameter("pos_bias_v", torch::empty({H, D}));
  }
  if (!UndrawnWeights::are_wanted()) {
    draw_tables(*this);
  }
  dropout = register_module("dropout", torch::nn::Dropout(options.dropout()));
}

void RelativeAttentionImpl::reset_parameters() {
  for (auto* layer :
       {&W_query,
        &W_key,
        &W_value,
        &out_proj,
        &W_pos,
        &W_pos_key,
        &W_pos_query}) {
    if (!layer->is_empty()) {
      (*layer)->reset_parameters();
    }
  }
  if (!distance_embedding.is_empty()) {
    distance_embedding->reset_parameters();
  }
  draw_tables(*this);
}

void RelativeAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::RelativeAttention(d_in=" << options.d_in()
         << ", d_out=" << options.d_out();
  detail::print_sizes(stream, options);
  stream << ", kind=" << options.kind() << std::boolalpha;
  if (options.kind() == RelativeKind::kLearned) {
    stream << ", left=" << options.left() << ", right=" << options.right();
    if (options.last_first()) {
      stream << ", last_first=true";
    }
  } else if (options.kind() == RelativeKind::kRowsAndColumns) {
    stream << ", height=" << options.height() << ", width=" << options.width();
    if (table_height_of(options) != options.height() ||
        table_width_of(options) != options.width()) {
      stream << ", table_height=" << table_height_of(options)
             << ", table_width=" << table_width_of(options);
    }
  } else if (options.kind() == RelativeKind::kDisentangled) {
    print_disentangled(stream, options);
  } else {
    stream << ", order=" << options.order();
  }
  detail::print_rule(stream, options.rule());
  if (options.chunks_before() > 0) {
    stream << ", chunks_before=" << options.chunks_before();
  }
  detail::print_biases(stream, options);
  if (!options.out_bias()) {
    stream << ", out_bias=false";
  }
  stream << ", dropout=" << options.dropout()
         << ", qkv_bias=" << options.qkv_bias()
         << ", causal=" << options.causal() << ", kernel=" << options.kernel()
         << ")";
}

torch::Tensor RelativeAttentionImpl::forward(
    const torch::Tensor& x,
    const ForwardOptions& call) {
  const auto attend = [&] {
    auto func = call_options_of(*this, x, call).kernel(options.kernel());
    const auto heads = project_relative(*this, x, options.kernel(), func);
    return functional::scaled_dot_product_attention(
        heads.queries, heads.keys, heads.values, func);
  };
  // A lambda, so that queries, keys, values and the bias are freed before the
  // output is allocated.
  return linear(out_proj, kernels::combine_heads(attend()), options.kernel());
}

std::tuple<torch::Tensor, torch::Tensor> RelativeAttentionImpl::
    forward_with_weights(const torch::Tensor& x, const ForwardOptions& call) {
  auto func = call_options_of(*this, x, call);
  const auto heads = project_relative(*this, x, Kernel::kReference, func);
  const auto [context, weights] =
      functional::scaled_dot_product_attention_with_weights(
          heads.queries, heads.keys, heads.values, func);
  return {
      linear(out_proj, kernels::combine_heads(context), Kernel::kReference),
      weights};
}

} // namespace torch_attention
