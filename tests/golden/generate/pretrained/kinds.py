"""Sizes of small models, and how models of Llama's and of GPT's kind are made."""

from __future__ import annotations

from typing import Any

from .model import LAYERS, Attention, Model

LLAMA_LIKE = "layers.{}.self_attn"

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 8,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "vocab_size": 12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT2_SIZES = {
    "n_embd": 24,
    "n_head": 4,
    "n_layer": LAYERS,
    "n_positions": 32,
    "n_inner": 8,
    "vocab_size": 12,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SLIDING_FIRST = ["sliding_attention", "full_attention"]
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
LOCAL_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
ROUTED_EXPERTS = {
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 2,
}


def llama_like(
    name: str, model_type: str = "", *, layers=(0, 1), **config: Any
) -> Model:
    return Model(
        name,
        model_type or name,
        (Attention(LLAMA_LIKE, layers=layers),),
        {**GROUPED, **config},
        prefix="model.",
        padded=name in ("llama", "qwen3", "gemma3"),
    )


def gpt_like(
    name: str,
    model_type: str = "",
    path: str = "h.{}.attn",
    *,
    sizes=GPT2_SIZES,
    last: str = "",
    prefix: str = "transformer.",
    padded: bool = False,
    added: str = "",
    implementation: str = "eager",
    **config: Any,
) -> Model:
    return Model(
        name,
        model_type or name,
        (Attention(path, last=last, bias=added),),
        {**sizes, **config},
        prefix,
        padded=padded,
        implementation=implementation,
    )
