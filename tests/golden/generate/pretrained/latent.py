"""Decoders with latent attention."""

from __future__ import annotations

from typing import Any

from .kinds import LLAMA_LIKE, SIZES
from .model import LAYERS, Attention, Model


def latent(name: str, *, layers: tuple[int, ...] = (0, 1), **config: Any) -> Model:
    """Keys and values of a small vector for each token."""
    return Model(
        name,
        name,
        (Attention(LLAMA_LIKE, label="latent.", layers=layers),),
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
    # So few keys that the choice matters, and so many heads that no score is a
    # sum of zeros.
    latent("deepseek_v32", q_lora_rank=10, index_n_heads=8, index_head_dim=6, index_topk=4),
    latent("glm_moe_dsa", q_lora_rank=10, index_n_heads=8, index_head_dim=6, index_topk=4),
    latent(
        "mistral4",
        q_lora_rank=10,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
            "original_max_position_embeddings": 3,
            "llama_4_scaling_beta": 0.5,
        },
    ),
    Model(
        "longcat_flash",
        "longcat_flash",
        tuple(
            Attention(
                f"layers.{i // 2}.self_attn.{i % 2}", label="latent.", layers=(i,)
            )
            for i in range(2 * LAYERS)
        ),
        {
            **{key: SIZES[key] for key in SIZES if key != "num_hidden_layers"},
            "num_layers": LAYERS,
            "num_key_value_heads": 4,
            "q_lora_rank": 10,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "head_dim": 4,
            "v_head_dim": 5,
            "ffn_hidden_size": 8,
            "expert_ffn_hidden_size": 8,
            "n_routed_experts": 2,
            "zero_expert_num": 1,
            "moe_topk": 2,
        },
        prefix="model.",
    ),
    latent(
        "kimi_linear",
        layers=(1,),
        layer_types=["linear_attention", "full_attention"],
        num_local_experts=2,
        linear_head_dim=6,
        linear_num_heads=4,
        mlp_layer_types=["dense", "dense"],
    ),
)
