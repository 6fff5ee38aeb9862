#include <jit/fused_layers.h>

#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/peephole.h>
#include <torch/jit.h>

namespace torch_attention::graphs {

namespace {

using torch::jit::Node;

/// The layers in TorchScript, with the arguments of LibTorch's operators. They
/// call LibTorch's attention, which is swapped like any other. A mask hides
/// where it is true or not 0. Its shape is (T, T) with type 0, (B, T) with type
/// 1, which hides keys of a batch, and (B, H, T, T) with type 2.
constexpr const char* kLayers = R"(
def self_attention(x: Tensor, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Optional[Tensor], mask_type: Optional[int]) -> Tensor:
    qkv = torch.linear(x, qkv_weight, qkv_bias)
    heads = qkv.unflatten(-1, [3, num_heads, -1]).permute([2, 0, 3, 1, 4])
    if mask is None:
        y = torch.scaled_dot_product_attention(heads[0], heads[1], heads[2])
    else:
        visible = torch.logical_not(mask)
        if mask_type is not None and mask_type == 1:
            visible = visible.unsqueeze(1).unsqueeze(1)
        y = torch.scaled_dot_product_attention(heads[0], heads[1], heads[2], visible)
    return torch.linear(y.transpose(1, 2).flatten(2), proj_weight, proj_bias)

def native_multi_head_attention(query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Optional[Tensor], need_weights: bool, average_attn_weights: bool, mask_type: Optional[int]) -> Tuple[Tensor, Tensor]:
    if not need_weights and not query.is_nested:
        y = self_attention(query, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type)
        return (y, torch.empty([0]))
    else:
        return torch._native_multi_head_attention(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, need_weights, average_attn_weights, mask_type)

def encoder_layer(src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor, mask: Optional[Tensor], mask_type: Optional[int]) -> Tensor:
    if not src.is_nested:
        x = src
        if norm_first:
            x = torch.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)
        x = src + self_attention(x, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type)
        if not norm_first:
            x = torch.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)
        h = x
        if norm_first:
            h = torch.layer_norm(h, [embed_dim], norm_weight_2, norm_bias_2, eps)
        h = torch.linear(h, ffn_weight_1, ffn_bias_1)
        if use_gelu:
            h = torch.gelu(h)
        else:
            h = torch.relu(h)
        x = x + torch.linear(h, ffn_weight_2, ffn_bias_2)
        if not norm_first:
            x = torch.layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)
        return x
    else:
        return torch._transformer_encoder_layer_fwd(src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask, mask_type)
)";

/// Returns the graph of a layer for the arguments of `node`. If the graph knows
/// that there is no mask, the branches for masks are removed.
std::shared_ptr<torch::jit::Graph> graph_of(
    const char* layer,
    const Node* node) {
  static const auto unit = torch::jit::compile(kLayers);
  auto graph =
      torch::jit::toGraphFunction(unit->get_function(layer)).graph()->copy();
  torch::jit::Inline(*graph);
  const torch::jit::WithInsertPoint point(*graph->nodes().begin());
  for (size_t i = 0; i < node->inputs().size(); ++i) {
    const auto constant = torch::jit::toIValue(node->input(i));
    if (constant && constant->isNone()) {
      graph->inputs()[i]->replaceAllUsesWith(
          graph->insertConstant(c10::IValue()));
    } else {
      graph->inputs()[i]->setType(node->input(i)->type());
    }
  }
  torch::jit::PeepholeOptimize(graph);
  torch::jit::ConstantPropagation(graph);
  return graph;
}

} // namespace

bool take_apart(Node* node) {
  const bool is_attention = node->kind() ==
      c10::Symbol::fromQualString("aten::_native_multi_head_attention");
  const bool is_layer = node->kind() ==
      c10::Symbol::fromQualString("aten::_transformer_encoder_layer_fwd");
  if (!is_attention && !is_layer) {
    return false;
  }
  if (is_attention &&
      (node->input(0) != node->input(1) || node->input(0) != node->input(2))) {
    return false;
  }
  auto& graph = *node->owningGraph();
  const torch::jit::WithInsertPoint point(node);
  const auto layer = graph_of(
      is_layer ? "encoder_layer" : "native_multi_head_attention", node);
  auto outputs = torch::jit::insertGraph(graph, *layer, node->inputs());
  if (is_attention) {
    outputs = torch::jit::createTupleUnpack(outputs.at(0)).vec();
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    node->output(i)->replaceAllUsesWith(outputs[i]);
  }
  node->destroy();
  return true;
}

} // namespace torch_attention::graphs
