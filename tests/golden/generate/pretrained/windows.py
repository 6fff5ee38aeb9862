"""Decoders of Llama's kind, some of whose layers have windows."""

from __future__ import annotations

from .kinds import (
    EXPERTS,
    LOCAL_EXPERTS,
    ROUTED_EXPERTS,
    SLIDING_FIRST,
    llama_like,
)

WINDOWS = (
    llama_like("mistral", sliding_window=4),
    llama_like("mixtral", num_local_experts=2, num_experts_per_tok=1),
    llama_like(
        "qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=1
    ),
    llama_like("qwen2_moe", **EXPERTS, shared_expert_intermediate_size=8),
    llama_like("qwen3", head_dim=8),
    llama_like("qwen3_moe", **EXPERTS, head_dim=8),
    llama_like("gemma", head_dim=8),
    llama_like("gemma2", head_dim=8, query_pre_attn_scalar=12, sliding_window=3),
    llama_like(
        "gemma3",
        "gemma3_text",
        head_dim=8,
        query_pre_attn_scalar=12,
        sliding_window=3,
        layer_types=SLIDING_FIRST,
    ),
    llama_like("olmo3", sliding_window=3, layer_types=SLIDING_FIRST),
    llama_like("smollm3", no_rope_layers=[1, 0]),
    llama_like("exaone4", sliding_window=3, layer_types=SLIDING_FIRST),
    llama_like(
        "cohere2",
        head_dim=6,
        sliding_window=3,
        layer_types=SLIDING_FIRST,
    ),
    llama_like(
        "cohere2_moe",
        **EXPERTS,
        head_dim=6,
        sliding_window=3,
        layer_types=SLIDING_FIRST,
        mlp_layer_types=["sparse", "sparse"],
    ),
    llama_like("cwm", head_dim=8, sliding_window=3, layer_types=SLIDING_FIRST),
    llama_like(
        "dots1",
        **ROUTED_EXPERTS,
        sliding_window=3,
        layer_types=SLIDING_FIRST,
    ),
    llama_like(
        "exaone_moe",
        **EXPERTS,
        sliding_window=3,
        layer_types=SLIDING_FIRST,
        mlp_layer_types=["dense", "dense"],
    ),
    llama_like("hy_v3", **EXPERTS, head_dim=8),
    llama_like(
        "kolibri1",
        **LOCAL_EXPERTS,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
        head_dim=8,
        sliding_window=3,
        layer_types=SLIDING_FIRST,
    ),
    llama_like(
        "mellum",
        **EXPERTS,
        num_local_experts=2,
        head_dim=8,
        sliding_window=3,
        layer_types=SLIDING_FIRST,
    ),
    llama_like("ministral", head_dim=6, sliding_window=3, layer_types=SLIDING_FIRST),
    llama_like(
        "gemma3_both_sides",
        "gemma3_text",
        head_dim=8,
        query_pre_attn_scalar=12,
        sliding_window=4,
        layer_types=SLIDING_FIRST,
        use_bidirectional_attention=True,
    ),
    llama_like(
        "vaultgemma", head_dim=8, query_pre_attn_scalar=12, sliding_window=3
    ),
)
