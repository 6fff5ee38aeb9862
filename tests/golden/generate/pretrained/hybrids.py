"""Decoders that have attention in some layers."""

from __future__ import annotations

from .kinds import EXPERTS, GROUPED, LOCAL_EXPERTS, SLIDING_FIRST, llama_like
from .model import Attention, Model

MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 12,
    "mamba_d_state": 4,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 4,
}

HYBRIDS = (
    llama_like(
        "bamba",
        layers=(1,),
        attn_layer_indices=[1],
        **{**MAMBA, "mamba_d_head": 16},
        hidden_size=32,
    ),
    llama_like(
        "minimax",
        layers=(0,),
        **LOCAL_EXPERTS,
        layer_types=["full_attention", "linear_attention"],
        head_dim=8,
        block_size=4,
    ),
    llama_like("falcon_h1", key_multiplier=0.7, mamba_d_ssm=48, **MAMBA),
    llama_like(
        "granitemoehybrid",
        **LOCAL_EXPERTS,
        **MAMBA,
        layers=(1,),
        attention_multiplier=0.3,
        layer_types=["linear_attention", "full_attention"],
        position_embedding_type="rope",
        shared_intermediate_size=8,
    ),
    llama_like(
        "jamba",
        layers=(1,),
        num_experts=1,
        num_experts_per_tok=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    llama_like(
        "lara_mini",
        **EXPERTS,
        shared_expert_intermediate_size=8,
        head_dim=8,
        sliding_window=3,
        layer_types=SLIDING_FIRST,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=4,
        linear_value_head_dim=4,
    ),
    llama_like("lfm2", layers=(1,), layer_types=["conv", "full_attention"]),
    llama_like(
        "lfm2_moe",
        **EXPERTS,
        layers=(1,),
        layer_types=["conv", "full_attention"],
        num_dense_layers=2,
    ),
    llama_like(
        "lfm3",
        head_dim=8,
        sliding_window=3,
        layer_types=SLIDING_FIRST,
    ),
    llama_like(
        "olmo_hybrid",
        layers=(1,),
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=4,
        linear_value_head_dim=4,
    ),
    Model(
        "nemotron_h",
        "nemotron_h",
        (Attention("layers.{}.mixer", layers=(1,)),),
        {
            **{key: GROUPED[key] for key in GROUPED if key != "num_hidden_layers"},
            "head_dim": 8,
            "layers_block_type": ["mlp", "full_attention"],
        },
        "backbone.",
    ),
)
