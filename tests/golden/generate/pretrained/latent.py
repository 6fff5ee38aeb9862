"""Decoders with latent attention."""

from __future__ import annotations

from typing import Any

from .kinds import LLAMA_LIKE, SIZES
from .model import Attention, Model


def latent(name: str, **config: Any) -> Model:
    """Keys and values of a small vector for each token."""
    return Model(
        name,
        name,
        (Attention(LLAMA_LIKE, label="latent."),),
        {
            **SIZES,
            "num_key_value_heads": 4,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 5,
            "moe_intermediate_size": 8,
            "n_routed_experts": 2,
            "num_experts_per_tok": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 2,
            **config,
        },
        prefix="model.",
    )


LATENT = (
    latent("deepseek_v3", q_lora_rank=10, attention_bias=True),
    latent(
        "deepseek_v2",
        q_lora_rank=None,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "mscale": 0.7,
            "mscale_all_dim": 0.9,
            "original_max_position_embeddings": 8,
        },
    ),
    latent("glm4_moe_lite", q_lora_rank=10, rope_interleave=False),
    latent("minicpm3", q_lora_rank=10),
    latent("youtu", q_lora_rank=10),
    latent("axk1", q_lora_rank=10),
    latent("sarvam_mla"),
)
