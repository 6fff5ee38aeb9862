#include <weights/pretrained/shared_embeddings.h>

#include <format_text.h>
#include <weights/pretrained/stored_floats.h>
#include <weights/select.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/layer_norm.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::weights::pretrained {

void load_shared_embeddings(
    const SharedEmbeddings& shared,
    const std::string& path,
    const torch::Tensor& target,
    LoadReport& report) {
  const torch::NoGradGuard no_grad;
  const auto d_in = target.size(1);
  // The embeddings are next to the list of layers.
  const auto encoder = path.substr(0, path.rfind(".layer."));
  const auto below = read_below(report.path, encoder);
  std::vector<std::string> keys;
  const auto read = [&](const char* name, torch::IntArrayRef sizes) {
    keys.push_back(format_text("{}.{}", encoder, name));
    return stored_floats(below, encoder, name, sizes);
  };
  const auto stored = read("rel_embeddings.weight", target.sizes());
  // In the module's dtype, in which the model would be computed.
  auto embeddings = stored.to(target.options());
  if (shared.norm_eps) {
    const auto weight = read("LayerNorm.weight", {d_in});
    const auto bias = read("LayerNorm.bias", {d_in});
    embeddings = at::layer_norm(
        embeddings,
        {d_in},
        weight.to(target.options()),
        bias.to(target.options()),
        *shared.norm_eps);
  }
  target.copy_(embeddings);
  constexpr auto* kKey = "relative_embeddings";
  auto& zeros = report.zeros;
  zeros.erase(std::remove(zeros.begin(), zeros.end(), kKey), zeros.end());
  report.loaded.push_back(
      {kKey,
       target.sizes().vec(),
       stored.scalar_type(),
       target.scalar_type(),
       std::move(keys)});
}

} // namespace torch_attention::weights::pretrained
