#include <torch_attention/nn/modules/longformer_attention.h>

#include <check.h>
#include <kernels/heads.h>
#include <kernels/plain.h>
#include <nn/checks.h>
#include <nn/modules/call.h>
#include <nn/modules/projected.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/options/block_mask.h>
#include <undrawn_weights.h>

#include <ostream>
#include <utility>
#include <vector>

namespace torch_attention {

namespace {

constexpr const char* kLongformer = "LongformerAttention";

using LongformerFuncOptions = functional::ScaledDotProductAttentionFuncOptions;

void check_options(const LongformerAttentionOptions& options) {
  checks::check_positive(kLongformer, "d_in", options.d_in());
  checks::check_positive(kLongformer, "d_out", options.d_out());
  checks::check_positive(kLongformer, "num_heads", options.num_heads());
  checks::check_dropout(kLongformer, options.dropout());
  TORCH_ATTENTION_CHECK(
      options.d_out() % options.num_heads() == 0,
      "LongformerAttention: expected d_out divisible by num_heads, but got "
      "d_out = {}, num_heads = {}",
      options.d_out(),
      options.num_heads());
}

/// Returns the number of tokens on each side that a token sees. Options may
/// change after the module was made.
int64_t side_of(const LongformerAttentionOptions& options) {
  const auto window = options.attention_window();
  TORCH_ATTENTION_CHECK(
      window > 0 && window % 2 == 0,
      "LongformerAttention: expected an even attention_window > 0, but got {}",
      window);
  return window / 2;
}

/// The arguments of a call that this class takes.
struct LongformerCall {
  /// Bool (B, T), or undefined without global tokens.
  torch::Tensor is_global;
  /// The padding of keys.
  ForwardOptions padding;
};

LongformerCall checked_call(
    const LongformerAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  checks::check_input(
      kLongformer, x, module.W_query->weight, module.options.d_in());
  const auto& is_global = call.global_tokens();
  const auto padding = ForwardOptions()
                           .key_padding_mask(call.key_padding_mask())
                           .key_lengths(call.key_lengths());
  auto others = call;
  others.global_tokens({}).key_padding_mask({}).key_lengths({});
  TORCH_CHECK(
      detail::is_empty(others),
      "LongformerAttention: expected no arguments but global_tokens, "
      "key_padding_mask and key_lengths, but got others");
  if (!is_global.defined()) {
    return {is_global, padding};
  }
  TORCH_ATTENTION_CHECK(
      is_global.scalar_type() == torch::kBool &&
          is_global.sizes() == x.sizes().slice(0, 2) &&
          is_global.device() == x.device(),
      "LongformerAttention: expected bool global_tokens of shape (B, T) = {} on "
      "{}, but got {} of shape {} on {}",
      x.sizes().slice(0, 2),
      x.device(),
      is_global.scalar_type(),
      is_global.sizes(),
      is_global.device());
  TORCH_CHECK(
      !kernels::is_traced(),
      "LongformerAttention: expected no global_tokens while it is traced, "
      "since the graph would keep their number");
  return {is_global.any().item<bool>() ? is_global : torch::Tensor(), padding};
}

LongformerFuncOptions func_of(
    const LongformerAttentionImpl& module,
    const ForwardOptions& padding,
    const std::vector<int64_t>& scores) {
  auto func = LongformerFuncOptions()
                  .dropout(module.dropout->options.p())
                  .training(module.dropout->is_training());
  detail::set_call(kLongformer, padding, scores, func);
  return func;
}

/// Lets each token see its neighbours and the global tokens.
void see_neighbours(
    int64_t side,
    const torch::Tensor& is_global,
    LongformerFuncOptions& func) {
  if (!is_global.defined()) {
    func.window(side + 1).window_after(side);
    return;
  }
  const auto T = is_global.size(1);
  if (!kernels::is_plain(is_global)) {
    const auto t =
        torch::arange(T, torch::device(is_global.device()).dtype(torch::kLong));
    const auto is_far = (t.unsqueeze(1) - t).abs().gt(side);
    const auto hidden =
        is_far.bitwise_and(is_global.bitwise_not().unsqueeze(1)).unsqueeze(1);
    func.mask(func.mask().defined() ? func.mask().bitwise_or(hidden) : hidden);
    return;
  }
  // One mask for all sequences with the same global tokens, such as the first.
  const auto first = is_global.narrow(0, 0, 1);
  const auto rows = is_global.eq(first).all().item<bool>() ? first : is_global;
  const auto ids = torch::zeros(rows.sizes(), torch::kLong);
  const auto key_ids = rows.to(torch::kLong) - 1;
  const auto sees =
      MaskMod::window(side + 1, side) | MaskMod::documents(ids, key_ids);
  func.block_mask(
      BlockMask(sees, BlockMaskOptions(T).batch_size(rows.size(0))));
}

Projected in_heads(const Projected& projected, int64_t num_heads) {
  return {
      kernels::split_heads(projected.queries, num_heads),
      kernels::split_heads(projected.keys, num_heads),
      kernels::split_heads(projected.values, num_heads)};
}

/// The global tokens of a batch: G for each sequence, the largest number that
/// one has, of which some may be unused.
struct GlobalTokens {
  /// int64 (B, G): their indices, in order.
  torch::Tensor indices;
  /// bool (B, G): false for those that are unused.
  torch::Tensor are_used;
  /// int64 (n) each: sequence and index of those that are used.
  torch::Tensor sequences;
  torch::Tensor tokens;
};

GlobalTokens global_tokens_of(const torch::Tensor& is_global) {
  const auto most = is_global.sum(1).max().item<int64_t>();
  const auto indices = torch::argsort(
                           is_global.to(torch::kByte),
                           /*stable=*/true,
                           /*dim=*/1,
                           /*descending=*/true)
                           .narrow(1, 0, most);
  const auto found = is_global.nonzero();
  return {
      indices,
      is_global.gather(1, indices),
      found.select(1, 0),
      found.select(1, 1)};
}

/// Returns queries (B, num_heads, G, head_dim) of the global tokens, and keys
/// and values (B, num_heads, T, head_dim) that they see.
Projected project_global(
    LongformerAttentionImpl& module,
    const torch::Tensor& x,
    const GlobalTokens& global,
    Kernel kernel) {
  const auto inputs =
      x.gather(1, global.indices.unsqueeze(-1).expand({-1, -1, x.size(2)}));
  auto outputs = kernels::linear_each(
      x,
      {layer_of(module.W_key_global), layer_of(module.W_value_global)},
      kernel);
  return in_heads(
      {linear(module.W_query_global, inputs, kernel), outputs[0], outputs[1]},
      module.options.num_heads());
}

/// Returns what `attend` gives of the heads and options of all tokens, tensors
/// (B, T, ...), in which it replaces the rows of global tokens by what `attend`
/// gives of these.
template <typename Attend>
std::vector<torch::Tensor> attend_all(
    LongformerAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call,
    Kernel kernel,
    const Attend& attend) {
  const auto [is_global, padding] = checked_call(module, x, call);
  const auto B = x.size(0);
  const auto T = x.size(1);
  const auto H = module.options.num_heads();
  auto func = func_of(module, padding, {B, H, T, T});
  see_neighbours(side_of(module.options), is_global, func);
  auto all = attend(in_heads(project_linear(module, x, kernel), H), func);
  if (is_global.defined()) {
    const auto global = global_tokens_of(is_global);
    const auto rows = attend(
        project_global(module, x, global, kernel),
        func_of(module, padding, {B, H, global.indices.size(1), T}));
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = all[i].index_put(
          {global.sequences, global.tokens}, rows[i].index({global.are_used}));
    }
  }
  if (const auto& hidden = padding.key_padding_mask(); hidden.defined()) {
    for (auto& each : all) {
      auto rows = hidden;
      while (rows.dim() < each.dim()) {
        rows = rows.unsqueeze(-1);
      }
      each = each.masked_fill(rows, 0);
    }
  }
  return all;
}

} // namespace

LongformerAttentionImpl::LongformerAttentionImpl(
    int64_t d_in,
    int64_t d_out,
    int64_t num_heads)
    : LongformerAttentionImpl(
          LongformerAttentionOptions(d_in, d_out, num_heads)) {}

LongformerAttentionImpl::LongformerAttentionImpl(
    const LongformerAttentionOptions& options_)
    : options(options_) {
  LongformerAttentionImpl::reset();
}

void LongformerAttentionImpl::reset() {
  check_options(options);
  side_of(options);
  // In the order of Python's class, so that a seed gives its weights.
  for (const auto& [name, layer] :
       {std::pair("W_query", &W_query),
        std::pair("W_key", &W_key),
        std::pair("W_value", &W_value),
        std::pair("W_query_global", &W_query_global),
        std::pair("W_key_global", &W_key_global),
        std::pair("W_value_global", &W_value_global)}) {
    *layer = register_module(
        name, make_linear(options.d_in(), options.d_out(), options.qkv_bias()));
  }
  out_proj = register_module(
      "out_proj",
      make_linear(options.d_out(), options.d_out(), options.out_bias()));
  dropout = register_module("dropout", torch::nn::Dropout(options.dropout()));
}

void LongformerAttentionImpl::reset_parameters() {
  for (auto* layer :
       {&W_query,
        &W_key,
        &W_value,
        &W_query_global,
        &W_key_global,
        &W_value_global,
        &out_proj}) {
    (*layer)->reset_parameters();
  }
}

void LongformerAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::LongformerAttention(d_in=" << options.d_in()
         << ", d_out=" << options.d_out()
         << ", num_heads=" << options.num_heads()
         << ", attention_window=" << options.attention_window()
         << std::boolalpha;
  if (!options.out_bias()) {
    stream << ", out_bias=false";
  }
  stream << ", dropout=" << options.dropout()
         << ", qkv_bias=" << options.qkv_bias()
         << ", kernel=" << options.kernel() << ")";
}

torch::Tensor LongformerAttentionImpl::forward(
    const torch::Tensor& x,
    const ForwardOptions& call) {
  const auto context = attend_all(
      *this,
      x,
      call,
      options.kernel(),
      [&](const Projected& heads, const LongformerFuncOptions& func) {
        return std::vector<torch::Tensor>{
            kernels::combine_heads(functional::scaled_dot_product_attention(
                heads.queries,
                heads.keys,
                heads.values,
                LongformerFuncOptions(func).kernel(options.kernel())))};
      });
  return linear(out_proj, context.front(), options.kernel());
}

std::tuple<torch::Tensor, torch::Tensor> LongformerAttentionImpl::
    forward_with_weights(const torch::Tensor& x, const ForwardOptions& call) {
  const auto all = attend_all(
      *this,
      x,
      call,
      Kernel::kReference,
      [](const Projected& heads, const LongformerFuncOptions& func) {
        const auto [context, weights] =
            functional::scaled_dot_product_attention_with_weights(
                heads.queries, heads.keys, heads.values, func);
        return std::vector<torch::Tensor>{
            kernels::combine_heads(context), weights.transpose(1, 2)};
      });
  return {linear(out_proj, all[0], Kernel::kReference), all[1].transpose(1, 2)};
}

} // namespace torch_attention
