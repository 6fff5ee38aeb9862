"""The models of models.py in the formats of the peers: ONNX and GGUF.

Sizes: B batch, T tokens, S tokens so far, V vocabulary, H heads on G of keys,
D head dimension.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

Weights = dict[str, Tensor]


# --- ONNX ------------------------------------------------------------------


class Graph:
    """Collects nodes and weights; each method returns its result's name."""

    def __init__(self) -> None:
        import onnx

        self.onnx = onnx
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def weight(self, name: str, x: Tensor) -> str:
        array = x.detach().contiguous().numpy()
        self.initializers.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def run(
        self,
        kind: str,
        inputs: list[str],
        outputs: str | list[str] = "",
        domain: str = "",
        **attributes: Any,
    ) -> str:
        names = outputs or f"{kind}_{len(self.nodes)}"
        names = [names] if isinstance(names, str) else names
        self.nodes.append(
            self.onnx.helper.make_node(
                kind, inputs, names, domain=domain, **attributes
            )
        )
        return names[0]

    def linear(self, x: str, name: str, weight: Tensor, bias: Any = None) -> str:
        """weight (in, out)"""
        y = self.run("MatMul", [x, self.weight(name + ".w", weight)])
        if bias is None:
            return y
        return self.run("Add", [y, self.weight(name + ".b", bias)])

    def attention(self, packed: str, layer: int, config: Any, extra: Any) -> str:
        """Attention by ONNX Runtime's operator with a cache."""
        past = [f"past.{layer}.key", f"past.{layer}.value"]
        present = [f"present.{layer}.key", f"present.{layer}.value"]
        inputs = [packed, "", "", *past, "last", "total", *extra["inputs"]]
        return self.run(
            "GroupQueryAttention",
            inputs,
            [f"attended.{layer}", *present],
            "com.microsoft",
            num_heads=config.num_attention_heads,
            kv_num_heads=heads_of_keys(config),
            **extra["attributes"],
        )

    def save(self, config: Any, path: pathlib.Path) -> None:
        h, float32 = self.onnx.helper, self.onnx.TensorProto.FLOAT
        int64, int32 = self.onnx.TensorProto.INT64, self.onnx.TensorProto.INT32
        cache = ["B", heads_of_keys(config), "S", head_dim(config)]

        def caches(prefix: str) -> list[Any]:
            return [
                h.make_tensor_value_info(f"{prefix}.{i}.{kind}", float32, cache)
                for i in range(config.num_hidden_layers)
                for kind in ("key", "value")
            ]

        inputs = [
            h.make_tensor_value_info("ids", int64, ["B", "T"]),
            h.make_tensor_value_info("positions", int64, ["T"]),
            h.make_tensor_value_info("last", int32, ["B"]),
            h.make_tensor_value_info("total", int32, []),
            *caches("past"),
        ]
        logits = h.make_tensor_value_info("logits", float32, ["B", None, None])
        outputs = [logits, *caches("present")]
        graph = h.make_graph(
            self.nodes, "model", inputs, outputs, self.initializers
        )
        opsets = [h.make_opsetid("", 20), h.make_opsetid("com.microsoft", 1)]
        self.onnx.save_model(
            h.make_model(graph, opset_imports=opsets, ir_version=10),
            str(path),
            save_as_external_data=True,
            location=path.name + ".data",
        )

    def last_token(self, x: str) -> str:
        """(B, T, C) -> (B, 1, C)"""
        index = self.weight("last_index", torch.tensor([-1]))
        return self.run("Gather", [x, index], axis=1)


def heads_of_keys(config: Any) -> int:
    return getattr(config, "num_key_value_heads", config.num_attention_heads)


def head_dim(config: Any) -> int:
    return config.hidden_size // config.num_attention_heads


def gpt2_onnx(w: Weights, config: Any, path: pathlib.Path) -> None:
    g = Graph()
    eps = config.layer_norm_epsilon

    def norm(x: str, name: str) -> str:
        pair = [g.weight(f"{name}.{n}", w[f"{name}.{n}"]) for n in ("weight", "bias")]
        return g.run("LayerNormalization", [x, *pair], axis=-1, epsilon=eps)

    def linear(x: str, name: str) -> str:
        return g.linear(x, name, w[name + ".weight"], w[name + ".bias"])

    embedding = g.run("Gather", [g.weight("wte", w["transformer.wte.weight"]), "ids"])
    position = g.run(
        "Gather", [g.weight("wpe", w["transformer.wpe.weight"]), "positions"]
    )
    x = g.run("Add", [embedding, position])
    for i in range(config.num_hidden_layers):
        block = f"transformer.h.{i}"
        packed = linear(norm(x, block + ".ln_1"), block + ".attn.c_attn")
        extra: Any = {"inputs": [], "attributes": {}}
        attended = g.attention(packed, i, config, extra)
        x = g.run("Add", [x, linear(attended, block + ".attn.c_proj")])
        hidden = linear(norm(x, block + ".ln_2"), block + ".mlp.c_fc")
        hidden = g.run("FastGelu", [hidden], domain="com.microsoft")
        x = g.run("Add", [x, linear(hidden, block + ".mlp.c_proj")])
    x = norm(g.last_token(x), "transformer.ln_f")
    head = g.weight("head", w["transformer.wte.weight"].T)
    g.run("MatMul", [x, head], "logits")
    g.save(config, path)


def llama_onnx(w: Weights, config: Any, path: pathlib.Path) -> None:
    g = Graph()

    def norm(x: str, name: str) -> str:
        weight = g.weight(name, w[name + ".weight"])
        kind = "SimplifiedLayerNormalization"
        return g.run(kind, [x, weight], axis=-1, epsilon=config.rms_norm_eps)

    def linear(x: str, name: str) -> str:
        return g.linear(x, name, w[name + ".weight"].T)

    theta = config.rope_parameters["rope_theta"]
    size = head_dim(config)
    rates = theta ** (-torch.arange(0, size, 2) / size)
    angles = torch.arange(config.max_position_embeddings)[:, None] * rates
    tables = [g.weight("cos", angles.cos()), g.weight("sin", angles.sin())]
    extra = {"inputs": tables, "attributes": {"do_rotary": 1}}
    x = g.run("Gather", [g.weight("embed", w["model.embed_tokens.weight"]), "ids"])
    for i in range(config.num_hidden_layers):
        block = f"model.layers.{i}"
        names = [f"{block}.self_attn.{n}_proj.weight" for n in "qkv"]
        weight = torch.cat([w[name] for name in names]).T
        packed = g.linear(norm(x, block + ".input_layernorm"), block, weight)
        attended = g.attention(packed, i, config, extra)
        x = g.run("Add", [x, linear(attended, block + ".self_attn.o_proj")])
        normed = norm(x, block + ".post_attention_layernorm")
        gate = linear(normed, block + ".mlp.gate_proj")
        gate = g.run("Mul", [gate, g.run("Sigmoid", [gate])])
        hidden = g.run("Mul", [gate, linear(normed, block + ".mlp.up_proj")])
        x = g.run("Add", [x, linear(hidden, block + ".mlp.down_proj")])
    x = norm(g.last_token(x), "model.norm")
    head = g.weight("head", w["model.embed_tokens.weight"].T)
    g.run("MatMul", [x, head], "logits")
    g.save(config, path)


def write_onnx(model: Any, path: pathlib.Path) -> None:
    write = gpt2_onnx if model.config.model_type == "gpt2" else llama_onnx
    write(model.state_dict(), model.config, path)


# --- GGUF ------------------------------------------------------------------

GPT2_NAMES = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
LLAMA_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_tensor(name: str, x: Tensor, config: Any) -> tuple[str, Tensor]:
    """Returns llama.cpp's name and order of a weight."""
    parts = name.split(".")
    kind = parts.pop()
    names = GPT2_NAMES if config.model_type == "gpt2" else LLAMA_NAMES
    if len(parts) > 3:
        layer, key = parts[2], ".".join(parts[3:])
        theirs = f"blk.{layer}.{names[key]}.{kind}"
    else:
        key = ".".join(parts)
        theirs = f"{names[key]}.{kind}"
    if ".c_" in name and x.dim() == 2:
        x = x.T
    if key in ("self_attn.q_proj", "self_attn.k_proj"):
        # Pairs of a rotation are neighbours there.
        half = head_dim(config) // 2
        x = x.view(-1, 2, half, x.size(1)).transpose(1, 2).reshape(x.shape)
    return theirs, x


def write_gguf(model: Any, path: pathlib.Path, dtype: str) -> None:
    """Writes a model without a vocabulary."""
    import gguf

    config = model.config
    is_gpt2 = config.model_type == "gpt2"
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    if is_gpt2:
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_dimension_count(head_dim(config))
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    types = gguf.GGMLQuantizationType
    for name, x in model.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        theirs, x = gguf_tensor(name, x, config)
        x = x.float().contiguous()
        if dtype == "bfloat16" and x.dim() == 2:
            numbers = x.bfloat16().view(torch.int16).numpy().view(np.uint8)
            writer.add_tensor(theirs, numbers, raw_dtype=types.BF16)
        else:
            writer.add_tensor(theirs, x.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
