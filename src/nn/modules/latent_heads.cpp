#include <nn/modules/latent_heads.h>

#include <kernels/heads.h>
#include <nn/modules/call.h>
#include <nn/modules/head_norm.h>
#include <nn/modules/partition.h>
#include <nn/modules/rotary_angles.h>
#include <nn/modules/temperature.h>

#include <vector>

namespace torch_attention::detail {

namespace {

torch::Tensor times(const torch::Tensor& x, double factor) {
  return factor == 1 ? x : x * factor;
}

/// Rotates a part of the heads (B, H, T, rope_dim), if the module does.
torch::Tensor rotated(
    const LatentAttentionOptions& options,
    const torch::Tensor& part,
    const LatentPlaces& places) {
  return options.rotary()
      ? rotate(
            part, places.angles, options.rotary()->pairing(), options.kernel())
      : part;
}

} // namespace

int64_t row_size(const LatentAttentionOptions& options) {
  return options.kv_rank() + options.rope_dim() +
      (options.indexer() ? options.indexer()->head_dim() : 0);
}

torch::Tensor latents_of(
    LatentAttentionImpl& module,
    const torch::Tensor& x,
    const LatentPlaces& places) {
  const auto& options = module.options;
  const auto kernel = options.kernel();
  const auto compressed = kernels::split_heads(
      linear(module.kv_a_proj_with_mqa, x, kernel), /*num_heads=*/1);
  const auto rank = options.kv_rank();
  const auto latent =
      normalised(*module.kv_a_layernorm, compressed.slice(-1, 0, rank), kernel);
  const auto key = rotated(options, compressed.slice(-1, rank), places);
  std::vector<torch::Tensor> parts = {
      times(latent, options.latent_scale()), key};
  if (!module.indexer.is_empty()) {
    parts.push_back(index_keys(*module.indexer, x, places.angles, kernel)
                        .to(latent.scalar_type()));
  }
  return torch::cat(parts, -1);
}

LatentQueries queries_of(
    LatentAttentionImpl& module,
    const torch::Tensor& x,
    const LatentPlaces& places) {
  const auto& options = module.options;
  const auto kernel = options.kernel();
  torch::Tensor latent;
  if (!module.q_a_proj.is_empty()) {
    latent = normalised(
                 *module.q_a_layernorm,
                 linear(module.q_a_proj, x, kernel).unsqueeze(1),
                 kernel)
                 .squeeze(1);
  }
  const auto projected = latent.defined()
      ? linear(module.q_b_proj, latent, kernel)
      : linear(module.q_proj, x, kernel);
  const auto queries = kernels::split_heads(
      times(projected, options.query_scale()), options.num_heads());
  const auto ready = [&](const torch::Tensor& part) {
    return options.temperature()
        ? with_temperature(part, places.of_temperature, *options.temperature())
        : part;
  };
  const auto nope = queries.slice(-1, 0, options.nope_dim());
  const auto rope = queries.slice(-1, options.nope_dim());
  return {
      ready(nope),
      ready(rotated(options, rope, places)),
      module.indexer.is_empty()
          ? IndexQueries{}
          : index_queries(*module.indexer, x, latent, places.angles, kernel)};
}

void hide_unchosen(
    const LatentAttentionImpl& module,
    const LatentQueries& queries,
    const torch::Tensor& rows,
    functional::ScaledDotProductAttentionFuncOptions& func) {
  if (!module.indexer.is_empty()) {
    const auto before = module.options.kv_rank() + module.options.rope_dim();
    hide_unchosen(*module.indexer, queries.index, rows.slice(-1, before), func);
  }
}

Projected expanded(
    LatentAttentionImpl& module,
    const LatentQueries& queries,
    const torch::Tensor& latents) {
  const auto& options = module.options;
  const auto H = options.num_heads();
  const auto rank = options.kv_rank();
  const auto both = kernels::split_heads(
      linear(
          module.kv_b_proj,
          latents.slice(-1, 0, rank).squeeze(1),
          options.kernel()),
      H);
  const auto rotated = latents.slice(-1, rank, rank + options.rope_dim())
                           .expand({-1, H, -1, -1});
  Projected projected;
  projected.queries = torch::cat({queries.nope, queries.rotated}, -1);
  projected.keys =
      torch::cat({both.slice(-1, 0, options.nope_dim()), rotated}, -1);
  projected.values = both.slice(-1, options.nope_dim());
  return projected;
}

LatentPlaces places_of(
    const LatentAttentionOptions& options,
    RotaryTable* table,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  const auto positions = positions_of(kLatent, call, x);
  LatentPlaces places;
  if (table != nullptr) {
    check_angles(kLatent, table->pairs(), x, call);
    places.angles =
        rotary_angles(*table, x, call, positions, *whole_partition());
  }
  if (options.temperature()) {
    const auto in_order = ForwardOptions().cu_seqlens(call.cu_seqlens());
    const auto at = options.temperature()->by_order()
        ? positions_of(kLatent, in_order, x)
        : positions;
    places.of_temperature =
        at.defined() ? at : torch::arange(x.size(1), torch::kLong);
  }
  return places;
}

LatentPlaces places_of(
    const LatentAttentionOptions& options,
    RotaryTable* table,
    const torch::Tensor& x,
    const CacheView& cache,
    const DecodeOptions& call,
    const NewTokens& tokens) {
  LatentPlaces places;
  if (table != nullptr) {
    if (!call.rotary_cos().defined()) {
      check_rotates_alike(kLatent, *options.rotary(), tokens, cache);
    }
    check_angles(kLatent, table->pairs(), x, call, tokens);
    places.angles = rotary_angles(*table, x, call, tokens);
  }
  if (options.temperature()) {
    places.of_temperature =
        tokens.before.unsqueeze(1) + torch::arange(x.size(1), torch::kLong);
  }
  return places;
}

} // namespace torch_attention::detail
