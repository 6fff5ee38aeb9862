#include <torch_attention/nn/modules/latent_attention.h>

#include <check.h>
#include <kernels/heads.h>
#include <kernels/plain.h>
#include <nn/checks.h>
#include <nn/modules/cache_view.h>
#include <nn/modules/call.h>
#include <nn/modules/decode.h>
#include <nn/modules/heads.h>
#include <nn/modules/latent_heads.h>
#include <nn/modules/temperature.h>
#include <nn/rotary.h>
#include <nn/score_rule.h>
#include <torch_attention/nn/functional/attention.h>

#include <cmath>
#include <ostream>
#include <utility>

namespace torch_attention {

namespace {

using detail::kLatent;
using LatentFuncOptions = functional::ScaledDotProductAttentionFuncOptions;

void check_options(const LatentAttentionOptions& options) {
  const auto check = [](const char* option, int64_t value) {
    checks::check_positive(kLatent, option, value);
    // Products of two such sizes fit into int64.
    constexpr int64_t kMost = int64_t{1} << 30;
    TORCH_ATTENTION_CHECK(
        value <= kMost,
        "LatentAttention: expected {} <= {}, but got {}",
        option,
        kMost,
        value);
  };
  check("d_in", options.d_in());
  check("d_out", options.d_out());
  checks::check_positive(kLatent, "context_length", options.context_length());
  check("num_heads", options.num_heads());
  check("query_rank", options.query_rank().value_or(1));
  check("kv_rank", options.kv_rank());
  check("nope_dim", options.nope_dim());
  check("rope_dim", options.rope_dim());
  check("value_dim", options.value_dim());
  checks::check_dropout(kLatent, options.dropout());
  checks::check_rule(kLatent, options.rule());
  if (options.rotary()) {
    detail::check_rotary(kLatent, *options.rotary(), options.rope_dim());
  }
  if (options.temperature()) {
    detail::check_temperature(kLatent, *options.temperature());
  }
  for (const auto& [name, factor] :
       {std::pair("query_scale", options.query_scale()),
        std::pair("latent_scale", options.latent_scale())}) {
    TORCH_ATTENTION_CHECK(
        std::isfinite(factor),
        "LatentAttention: expected a finite {}, but got {}",
        name,
        factor);
  }
  if (options.indexer()) {
    TORCH_ATTENTION_CHECK(
        options.query_rank() && options.rotary(),
        "LatentAttention: expected a query_rank, from whose latent vectors the "
        "indexer projects its queries, and rotary, but got {}",
        options.query_rank() ? "no rotary" : "no query_rank");
    check("indexer.head_dim", options.indexer()->head_dim());
    TORCH_ATTENTION_CHECK(
        options.indexer()->head_dim() >= options.rope_dim(),
        "LatentAttention: expected indexer.head_dim >= rope_dim = {}, but got "
        "{}",
        options.rope_dim(),
        options.indexer()->head_dim());
    detail::check_rotary(
        kLatent,
        RotaryOptions(*options.rotary()).pairing(options.indexer()->pairing()),
        options.rope_dim());
  }
}

void check_input(
    const LatentAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call = {}) {
  checks::check_input(
      kLatent, x, module.kv_a_proj_with_mqa->weight, module.options.d_in());
  TORCH_CHECK(
      module.indexer.is_empty() || !call.cu_seqlens().defined(),
      "LatentAttention: expected a padded batch, in which the indexer chooses "
      "keys of each sequence, but got cu_seqlens");
  detail::check_length(kLatent, x, call, module.options.context_length());
}

void print_places(std::ostream& stream, const LatentAttentionOptions& options) {
  if (options.query_scale() != 1) {
    stream << ", query_scale=" << options.query_scale();
  }
  if (options.latent_scale() != 1) {
    stream << ", latent_scale=" << options.latent_scale();
  }
  if (options.temperature()) {
    detail::print_temperature(stream, *options.temperature());
  }
  if (options.indexer()) {
    stream << ", indexer_heads=" << options.indexer()->num_heads()
           << ", indexer_head_dim=" << options.indexer()->head_dim()
           << ", indexer_topk=" << options.indexer()->topk();
  }
  if (!options.rotary()) {
    stream << ", rotary=none";
    return;
  }
  const auto& rotary = *options.rotary();
  stream << ", rotary_theta=" << rotary.theta()
         << ", rotary_pairing=" << rotary.pairing();
  if (rotary.scaling() != RotaryScaling::kLinear || rotary.factor() != 1) {
    stream << ", rotary_factor=" << rotary.factor()
           << ", rotary_scaling=" << rotary.scaling();
  }
  if (rotary.reversed()) {
    stream << ", rotary_reversed=true";
  }
}

LatentFuncOptions func_options_of(const LatentAttentionImpl& module) {
  const auto& options = module.options;
  const auto head_dim =
      static_cast<double>(options.nope_dim() + options.rope_dim());
  auto result = detail::head_options(module);
  // Latent keys are longer than head_dim, but have the scale of full keys.
  result.scale() = options.scale().value_or(1 / std::sqrt(head_dim));
  return result;
}

LatentFuncOptions call_options_of(
    const LatentAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  auto options = func_options_of(module);
  if (!detail::is_empty(call)) {
    const auto [B, T, S] = detail::call_sizes(kLatent, x, call);
    detail::set_call(
        kLatent, call, {B, module.options.num_heads(), T, S}, options);
    detail::set_checked_chunks(kLatent, x, call, /*num_score_dims=*/4, options);
  }
  if (!module.indexer.is_empty()) {
    detail::check_chooses_for_all_heads(options);
  }
  return options;
}

/// Returns queries, keys and values for one call of `forward`, and hides the
/// keys that the indexer does not choose in `func`.
Projected project_latent(
    LatentAttentionImpl& module,
    detail::RotaryTable* table,
    const torch::Tensor& x,
    const ForwardOptions& call,
    LatentFuncOptions& func) {
  const auto places = detail::places_of(module.options, table, x, call);
  const auto latents = detail::latents_of(module, x, places);
  const auto queries = detail::queries_of(module, x, places);
  detail::hide_unchosen(module, queries, latents, func);
  return detail::expanded(module, queries, latents);
}

/// Returns whether forming keys and values for T queries takes fewer
/// multiplications than attending to the latent vectors, which are larger.
bool pays_to_expand(const LatentAttentionOptions& options, int64_t T) {
  const auto R = static_cast<double>(options.kv_rank());
  const auto shared = static_cast<double>(options.rope_dim());
  const auto made =
      static_cast<double>(options.nope_dim() + options.value_dim());
  return static_cast<double>(T) * (2 * R + shared) >
      static_cast<double>(T) * (made + shared) + R * made;
}

/// Returns the attention of queries to all rows of the cache, (B, num_heads, T,
/// value_dim).
torch::Tensor attend_to_latents(
    LatentAttentionImpl& module,
    const detail::LatentQueries& queries,
    const detail::CacheView& cache,
    LatentFuncOptions func) {
  const auto& options = module.options;
  const auto dtype = queries.nope.scalar_type();
  if (options.indexer() && cache.num_rows() > options.indexer()->topk()) {
    detail::hide_unchosen(module, queries, cache.keys(), func);
  }
  if (pays_to_expand(options, queries.nope.size(2))) {
    const auto heads =
        detail::expanded(module, queries, cache.keys().to(dtype));
    return functional::scaled_dot_product_attention(
        heads.queries, heads.keys, heads.values, func);
  }
  kernels::check_device(
      kLatent, "kv_b_proj", module.kv_b_proj->weight, cache.options().device());
  // (num_heads, nope_dim + value_dim, kv_rank)
  const auto up = module.kv_b_proj->weight.reshape(
      {options.num_heads(), -1, options.kv_rank()});
  const auto to_key = up.slice(1, 0, options.nope_dim());
  const auto to_value = up.slice(1, options.nope_dim());
  auto query =
      torch::cat({torch::matmul(queries.nope, to_key), queries.rotated}, -1);
  if (options.indexer()) {
    // Zeros for its keys, which are a part of the cached rows.
    query = torch::constant_pad_nd(query, {0, options.indexer()->head_dim()});
  }
  const auto context = cache.attend(query, func);
  return torch::matmul(context.to(dtype), to_value.transpose(1, 2));
}

void check_decode(
    const LatentAttentionImpl& module,
    const torch::Tensor& x,
    const detail::CacheView& cache) {
  const auto& options = module.options;
  detail::check_decodes(kLatent, module);
  detail::check_cache_part(
      kLatent,
      cache.options(),
      /*num_parts=*/1,
      /*part=*/0);
  const auto& has = cache.options();
  const auto row = detail::row_size(options);
  TORCH_ATTENTION_CHECK(
      has.values_in_keys() && has.num_kv_heads() == 1 &&
          has.head_dim() == row &&
          has.value_dim().value_or(row) == options.kv_rank() && !has.window() &&
          !has.chunk(),
      "LatentAttention: expected a cache with values_in_keys of one "
      "head, head_dim = kv_rank + rope_dim{} = {}, value_dim = kv_rank = "
      "{} and neither window nor chunk; make_cache makes one",
      options.indexer() ? " + indexer.head_dim" : "",
      row,
      options.kv_rank());
  const auto& weight = module.kv_b_proj->weight;
  TORCH_ATTENTION_CHECK(
      has.device() == weight.device() && x.size(0) == has.batch_size(),
      "LatentAttention: expected a cache of {} sequences on {}, but got "
      "one of {} on {}",
      x.size(0),
      weight.device(),
      has.batch_size(),
      has.device());
}

/// Returns the options of functional attention after `tokens` were appended to
/// `cache`.
LatentFuncOptions decode_options(
    const LatentAttentionImpl& module,
    const torch::Tensor& x,
    const detail::CacheView& cache,
    const DecodeOptions& call,
    const detail::NewTokens& tokens) {
  const auto& options = module.options;
  const auto T = x.size(1);
  auto func = func_options_of(module).kernel(options.kernel());
  detail::set_rows_of_cache(cache, tokens.before, T, func);
  detail::set_decode_scores(
      kLatent,
      call,
      cache,
      {x.size(0), T, tokens.most_after},
      options.num_heads(),
      func);
  detail::set_decode_blocks(
      kLatent,
      call,
      cache,
      tokens,
      {x.size(0), T, T},
      BlockScope::kCausal,
      func);
  if (!module.indexer.is_empty()) {
    detail::check_chooses_for_all_heads(func);
  }
  return func;
}

} // namespace

LatentAttentionImpl::LatentAttentionImpl(
    int64_t d_in,
    int64_t d_out,
    int64_t context_length,
    int64_t num_heads)
    : LatentAttentionImpl(
          LatentAttentionOptions(d_in, d_out, context_length, num_heads)) {}

LatentAttentionImpl::LatentAttentionImpl(const LatentAttentionOptions& options_)
    : options(options_) {
  LatentAttentionImpl::reset();
}

void LatentAttentionImpl::reset() {
  check_options(options);
  const auto H = options.num_heads();
  const auto add = [&](const char* name, int64_t in, int64_t out, bool bias) {
    return register_module(name, make_linear(in, out, bias));
  };
  const auto add_norm = [&](const char* name, int64_t size) {
    return register_module(
        name, HeadNorm(1, size, HeadNormOptions().eps(options.norm_eps())));
  };
  const auto queries = H * (options.nope_dim() + options.rope_dim());
  if (options.query_rank()) {
    const auto rank = *options.query_rank();
    q_a_proj = add("q_a_proj", options.d_in(), rank, options.bias());
    q_a_layernorm = add_norm("q_a_layernorm", rank);
    q_b_proj = add("q_b_proj", rank, queries, false);
  } else {
    q_proj = add("q_proj", options.d_in(), queries, false);
  }
  kv_a_proj_with_mqa =
      add("kv_a_proj_with_mqa",
          options.d_in(),
          options.kv_rank() + options.rope_dim(),
          options.bias());
  kv_a_layernorm = add_norm("kv_a_layernorm", options.kv_rank());
  kv_b_proj =
      add("kv_b_proj",
          options.kv_rank(),
          H * (options.nope_dim() + options.value_dim()),
          false);
  o_proj =
      add("o_proj", H * options.value_dim(), options.d_out(), options.bias());
  if (options.indexer()) {
    indexer = register_module(
        "indexer",
        Indexer(options.d_in(), *options.query_rank(), *options.indexer()));
  }
  dropout = register_module("dropout", torch::nn::Dropout(options.dropout()));
  // `clone` copies the pointer: make a new table, which is not shared.
  rotary_table_ = options.rotary() ? std::make_shared<detail::RotaryTable>(
                                         *options.rotary(), options.rope_dim())
                                   : nullptr;
}

void LatentAttentionImpl::reset_parameters() {
  for (auto* layer :
       {&q_proj,
        &q_a_proj,
        &q_b_proj,
        &kv_a_proj_with_mqa,
        &kv_b_proj,
        &o_proj}) {
    if (!layer->is_empty()) {
      (*layer)->reset_parameters();
    }
  }
  if (!q_a_layernorm.is_empty()) {
    q_a_layernorm->reset_parameters();
  }
  kv_a_layernorm->reset_parameters();
  if (!indexer.is_empty()) {
    indexer->reset_parameters();
  }
}

void LatentAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::LatentAttention(d_in=" << options.d_in()
         << ", d_out=" << options.d_out()
         << ", context_length=" << options.context_length()
         << ", num_heads=" << options.num_heads();
  if (options.query_rank()) {
    stream << ", query_rank=" << *options.query_rank();
  }
  stream << ", kv_rank=" << options.kv_rank()
         << ", nope_dim=" << options.nope_dim()
         << ", rope_dim=" << options.rope_dim()
         << ", value_dim=" << options.value_dim();
  detail::print_rule(stream, options.rule());
  print_places(stream, options);
  stream << ", dropout=" << options.dropout() << ", bias=" << std::boolalpha
         << options.bias() << ", causal=" << options.causal()
         << ", kernel=" << options.kernel() << ")";
}

torch::Tensor LatentAttentionImpl::forward(
    const torch::Tensor& x,
    const ForwardOptions& call) {
  if (detail::lacks_batch(x, call)) {
    return forward(x.unsqueeze(0), call).squeeze(0);
  }
  check_input(*this, x, call);
  const auto attend = [&] {
    auto func = call_options_of(*this, x, call).kernel(options.kernel());
    const auto heads =
        project_latent(*this, rotary_table_.get(), x, call, func);
    return functional::scaled_dot_product_attention(
        heads.queries, heads.keys, heads.values, func);
  };
  // A lambda, so that queries, keys and values are freed before the output is
  // allocated.
  return linear(o_proj, kernels::combine_heads(attend()), options.kernel());
}

std::tuple<torch::Tensor, torch::Tensor> LatentAttentionImpl::
    forward_with_weights(const torch::Tensor& x, const ForwardOptions& call) {
  checks::check_not_packed(kLatent, call.cu_seqlens());
  check_input(*this, x, call);
  auto func = call_options_of(*this, x, call);
  const auto heads = project_latent(*this, rotary_table_.get(), x, call, func);
  const auto [context, weights] =
      functional::scaled_dot_product_attention_with_weights(
          heads.queries, heads.keys, heads.values, func);
  return {
      linear(o_proj, kernels::combine_heads(context), Kernel::kReference),
      weights};
}

torch::Tensor LatentAttentionImpl::decode(
    const torch::Tensor& x,
    KVCache& cache,
    const DecodeOptions& call) {
  detail::SlabView view(cache);
  return decode_view(x, view, call);
}

torch::Tensor LatentAttentionImpl::decode(
    const torch::Tensor& x,
    const BlockBatch& sequences,
    const DecodeOptions& call) {
  detail::BlocksView view(sequences);
  return decode_view(x, view, call);
}

torch::Tensor LatentAttentionImpl::decode_view(
    const torch::Tensor& x,
    detail::CacheView& cache,
    const DecodeOptions& call) {
  const torch::NoGradGuard no_grad;
  check_input(*this, x);
  check_decode(*this, x, cache);
  const auto tokens =
      detail::new_tokens(kLatent, x, cache, call, options.context_length());
  const auto places =
      detail::places_of(options, rotary_table_.get(), x, cache, call, tokens);
  const auto in_order = detail::padding_last(x, tokens);
  const auto queries = detail::queries_of(*this, in_order, places);
  const auto latents = detail::latents_of(*this, in_order, places);
  detail::CacheAppend appended(cache, latents, {}, tokens.counts);
  const auto func = decode_options(*this, x, cache, call, tokens);
  const auto context = attend_to_latents(*this, queries, cache, func);
  auto output = detail::padding_first(
      linear(o_proj, kernels::combine_heads(context), options.kernel()),
      tokens);
  appended.commit();
  return output;
}

KVCache LatentAttentionImpl::make_cache(int64_t batch_size) const {
  const auto& weight = kv_b_proj->weight;
  return KVCache(KVCacheOptions(batch_size, 1, detail::row_size(options))
                     .value_dim(options.kv_rank())
                     .values_in_keys(true)
                     .max_length(options.context_length())
                     .dtype(weight.scalar_type())
                     .device(weight.device()));
}

BlockCacheOptions LatentAttentionImpl::block_cache_options() const {
  const auto& weight = kv_b_proj->weight;
  return BlockCacheOptions(1, detail::row_size(options))
      .value_dim(options.kv_rank())
      .values_in_keys(true)
      .dtype(weight.scalar_type())
      .device(weight.device());
}

} // namespace torch_attention
