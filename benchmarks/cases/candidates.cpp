#include <cases/candidates.h>

#include <torch_attention/nn/functional/attention.h>

#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/activation.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

namespace torch_attention::benchmarks {

namespace {

/// The factor of the query and key weights: with LibTorch's initial weights,
/// attention is so even that an error in it would hardly show.
constexpr double kSharper = 2;

/// Returns a gradient (B, T, H D) for the output projection's result; undefined
/// without backward.
torch::Tensor draw_cotangent(const Work& work) {
  return work.backward ? at::randn({work.B, work.T, work.H * work.D})
                       : torch::Tensor();
}

void copy_weights(
    const torch::nn::Module& source,
    torch::nn::Module& destination) {
  torch::NoGradGuard no_grad;
  auto to = destination.named_parameters();
  for (const auto& item : source.named_parameters()) {
    to[item.key()].copy_(item.value());
  }
}

/// Makes a candidate of a module with the weights of `data`.
template <typename Impl, typename Data, typename Options>
Candidate candidate_of(
    const std::string& name,
    const Data& data,
    const Options& options) {
  const auto module = std::make_shared<Impl>(options);
  module->to(data.input.scalar_type());
  copy_weights(*data.weights, *module);
  return module_candidate(name, module, data.input, data.cotangent);
}

/// A module as LibTorch's users write it with the fused attention.
class SdpaModule : public torch::nn::Module {
 public:
  explicit SdpaModule(const MultiHeadAttentionOptions& options_)
      : options(options_) {
    const auto linear = [&](const char* name, int64_t in, bool bias) {
      return register_module(
          name,
          torch::nn::Linear(
              torch::nn::LinearOptions(in, options.d_out()).bias(bias)));
    };
    W_query_ = linear("W_query", options.d_in(), options.qkv_bias());
    W_key_ = linear("W_key", options.d_in(), options.qkv_bias());
    W_value_ = linear("W_value", options.d_in(), options.qkv_bias());
    out_proj_ = linear("out_proj", options.d_out(), true);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto B = x.size(0);
    const auto T = x.size(1);
    const auto D = options.d_out() / options.num_heads();
    // (B, T, H D) -> (B, H, T, D)
    const auto heads = [&](torch::nn::Linear& linear) {
      return linear->forward(x)
          .view({B, T, options.num_heads(), D})
          .transpose(1, 2);
    };
    const auto context = at::scaled_dot_product_attention(
        heads(W_query_),
        heads(W_key_),
        heads(W_value_),
        /*attn_mask=*/{},
        is_training() ? options.dropout() : 0,
        /*is_causal=*/true);
    return out_proj_->forward(
        context.transpose(1, 2).contiguous().view({B, T, options.d_out()}));
  }

  MultiHeadAttentionOptions options;

 private:
  torch::nn::Linear W_query_ = nullptr;
  torch::nn::Linear W_key_ = nullptr;
  torch::nn::Linear W_value_ = nullptr;
  torch::nn::Linear out_proj_ = nullptr;
};

/// Returns LibTorch's module with our weights; biases that ours lacks are zero.
torch::nn::MultiheadAttention libtorch_module_of(
    const MultiHeadAttentionImpl& source) {
  const auto& options = source.options;
  TORCH_CHECK(
      options.d_in() == options.d_out(),
      "bench: torch::nn::MultiheadAttention takes d_in == d_out, but got ",
      options.d_in(),
      " and ",
      options.d_out());
  torch::nn::MultiheadAttention module(
      torch::nn::MultiheadAttentionOptions(options.d_out(), options.num_heads())
          .dropout(options.dropout()));
  torch::NoGradGuard no_grad;
  module->in_proj_weight.copy_(at::cat(
      {source.W_query->weight, source.W_key->weight, source.W_value->weight}));
  module->in_proj_bias.zero_();
  module->out_proj->weight.copy_(source.out_proj->weight);
  module->out_proj->bias.copy_(source.out_proj->bias);
  return module;
}

} // namespace

bool is_half(torch::ScalarType dtype) {
  return dtype == torch::kHalf || dtype == torch::kBFloat16;
}

ModuleData draw_module(const Work& work, bool mask) {
  at::manual_seed(kSeed);
  ModuleData data;
  data.weights = MultiHeadAttention(
      MultiHeadAttentionOptions(work.C, work.H * work.D, work.T, work.H)
          .dropout(work.dropout)
          .register_mask(mask)
          .out_proj(work.out_proj));
  torch::NoGradGuard no_grad;
  data.weights->W_query->weight.mul_(kSharper);
  data.weights->W_key->weight.mul_(kSharper);
  data.input = at::randn({work.B, work.T, work.C});
  data.cotangent = draw_cotangent(work);
  return data;
}

ModuleData in_dtype(ModuleData data, torch::Dtype dtype) {
  data.weights->to(dtype);
  data.input = data.input.to(dtype);
  if (data.cotangent.defined()) {
    data.cotangent = data.cotangent.to(dtype);
  }
  return data;
}

Candidate our_module(
    const std::string& name,
    const ModuleData& data,
    Kernel kernel) {
  auto options = data.weights->options;
  return candidate_of<MultiHeadAttentionImpl>(
      name, data, options.kernel(kernel));
}

Candidate sdpa_module(const std::string& name, const ModuleData& data) {
  return candidate_of<SdpaModule>(name, data, data.weights->options);
}

Candidate libtorch_module(const std::string& name, const ModuleData& data) {
  constexpr int64_t kProjections = 3;
  const auto module = libtorch_module_of(*data.weights).ptr();
  // Transposes (B, T, C) to (T, B, C) and back outside of the timed part.
  const auto x = leaf_of(
      data.input.transpose(0, 1).contiguous(), data.cotangent.defined());
  const auto cotangent = data.cotangent.defined()
      ? data.cotangent.transpose(0, 1).contiguous()
      : data.cotangent;
  const std::vector<torch::Tensor> leaves{
      x,
      module->in_proj_weight,
      module->in_proj_bias,
      module->out_proj->weight,
      module->out_proj->bias};
  const auto run = run_of(
      [module, x, mask = additive_mask(data.input.size(1), std::nullopt)] {
        return std::get<0>(module->forward(
            x,
            x,
            x,
            /*key_padding_mask=*/{},
            /*need_weights=*/false,
            mask));
      },
      cotangent,
      leaves);
  Candidate candidate;
  candidate.name = name;
  candidate.run = [run] { return run().transpose(0, 1); };
  candidate.take_gradients = [leaves]() -> std::vector<torch::Tensor> {
    const auto theirs = take_gradients_of(leaves);
    if (!theirs[0].defined()) {
      return {};
    }
    const auto projections = theirs[1].chunk(kProjections);
    return {
        theirs[0].transpose(0, 1),
        projections[0],
        projections[1],
        projections[2],
        theirs[3],
        theirs[4]};
  };
  candidate.drops = module->options.dropout() > 0;
  candidate.set_dropout = [module](bool on) { module->train(on); };
  return candidate;
}

WrapperData draw_wrapper(const Work& work) {
  at::manual_seed(kSeed);
  WrapperData data;
  data.weights = MultiHeadAttentionWrapper(
      MultiHeadAttentionWrapperOptions(work.C, work.D, work.T, work.H)
          .dropout(work.dropout));
  torch::NoGradGuard no_grad;
  for (auto& item : data.weights->named_parameters()) {
    if (item.key().find("W_value") == std::string::npos) {
      item.value().mul_(kSharper);
    }
  }
  data.input = at::randn({work.B, work.T, work.C});
  data.cotangent = draw_cotangent(work);
  return data;
}

Candidate our_wrapper(
    const std::string& name,
    const WrapperData& data,
    Kernel kernel) {
  auto options = data.weights->options;
  return candidate_of<MultiHeadAttentionWrapperImpl>(
      name, data, options.kernel(kernel));
}

AttentionData draw_attention(const Work& work) {
  at::manual_seed(kSeed);
  const auto draw = [&](int64_t heads, int64_t tokens) {
    return at::randn({work.B, heads, tokens, work.D}).to(work.dtype);
  };
  AttentionData data;
  data.query = draw(work.H, work.T);
  data.key = draw(work.num_key_heads(), work.num_keys());
  data.value = draw(work.num_key_heads(), work.num_keys());
  data.cotangent = draw_cotangent(work);
  if (data.cotangent.defined()) {
    data.cotangent =
        data.cotangent.view({work.B, work.T, work.H, work.D}).transpose(1, 2);
    data.cotangent = data.cotangent.to(work.dtype);
  }
  return data;
}

namespace {

/// Makes a candidate of attention on leaves with the data's values.
template <typename Attend>
Candidate attention_candidate(
    const std::string& name,
    const AttentionData& data,
    Attend attend) {
  const auto has_backward = data.cotangent.defined();
  const auto q = leaf_of(data.query, has_backward);
  const auto k = leaf_of(data.key, has_backward);
  const auto v = leaf_of(data.value, has_backward);
  const std::vector<torch::Tensor> leaves{q, k, v};
  auto candidate = forward_candidate(
      name, run_of([=] { return attend(q, k, v); }, data.cotangent, leaves));
  if (is_half(data.query.scalar_type())) {
    candidate.allowed_difference = kAllowedInHalf;
  }
  candidate.take_gradients = [leaves] { return take_gradients_of(leaves); };
  return candidate;
}

} // namespace

Candidate our_attention(
    const std::string& name,
    const AttentionData& data,
    const functional::ScaledDotProductAttentionFuncOptions& options) {
  auto shared =
      std::make_shared<functional::ScaledDotProductAttentionFuncOptions>(
          options);
  auto candidate = attention_candidate(
      name,
      data,
      [shared](
          const torch::Tensor& q,
          const torch::Tensor& k,
          const torch::Tensor& v) {
        return functional::scaled_dot_product_attention(q, k, v, *shared);
      });
  if (options.dropout() > 0) {
    candidate.drops = true;
    candidate.set_dropout = [shared](bool on) { shared->training(on); };
  }
  return candidate;
}

Candidate sdpa_attention(
    const std::string& name,
    const AttentionData& data,
    const SdpaOptions& options) {
  auto dropout = std::make_shared<double>(options.dropout);
  std::optional<torch::Tensor> mask;
  if (options.mask.defined()) {
    mask = options.mask;
  }
  auto candidate = attention_candidate(
      name,
      data,
      [dropout, mask, causal = options.causal, shares = options.enable_gqa](
          const torch::Tensor& q,
          const torch::Tensor& k,
          const torch::Tensor& v) {
        return at::scaled_dot_product_attention(
            q, k, v, mask, *dropout, causal, /*scale=*/std::nullopt, shares);
      });
  if (options.dropout > 0) {
    candidate.drops = true;
    candidate.set_dropout = [dropout, p = options.dropout](bool on) {
      *dropout = on ? p : 0;
    };
  }
  return candidate;
}

std::vector<Candidate> attention_candidates(const Work& work) {
  const auto data = draw_attention(work);
  SdpaOptions theirs;
  theirs.dropout = work.dropout;
  std::vector<Candidate> candidates{
      our_attention(
          "ours",
          data,
          functional::ScaledDotProductAttentionFuncOptions()
              .causal(true)
              .dropout(work.dropout)),
      sdpa_attention("SDPA", data, theirs)};
  if (work.dropout > 0) {
    candidates.push_back(
        sdpa_attention("SDPA without dropout", data, SdpaOptions()));
  }
  return candidates;
}

torch::Tensor additive_mask(int64_t T, std::optional<int64_t> window) {
  const auto hidden = -std::numeric_limits<double>::infinity();
  auto visible = at::ones({T, T}, torch::kBool).tril_();
  if (window) {
    visible.triu_(1 - *window);
  }
  return at::zeros({T, T}).masked_fill_(visible.logical_not(), hidden);
}

} // namespace torch_attention::benchmarks
