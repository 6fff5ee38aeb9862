#include <cases/operators.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>

namespace torch_attention::benchmarks {

torch::Tensor sdpa(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::optional<torch::Tensor>& mask,
    bool causal) {
  const bool shared = query.size(1) != key.size(1);
  return at::scaled_dot_product_attention(
      query, key, value, mask, 0.0, causal, std::nullopt, shared);
}

torch::Tensor heads_of(const torch::Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, -1}).transpose(1, 2);
}

torch::Tensor joined(const torch::Tensor& heads) {
  return heads.transpose(1, 2).flatten(2);
}

torch::Tensor project(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

torch::Tensor with_room(const torch::Tensor& rows, int64_t room) {
  auto sizes = rows.sizes().vec();
  sizes[2] += room;
  auto all = at::empty(sizes, rows.options());
  all.narrow(2, 0, rows.size(2)).copy_(rows);
  return all;
}

} // namespace torch_attention::benchmarks
