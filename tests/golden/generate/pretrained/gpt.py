"""Decoders of GPT's kind."""

from __future__ import annotations

from typing import Any

from .kinds import LLAMA_LIKE, SIZES, gpt_like
from .model import LAYERS, Attention, Model


def bark(name: str, model_class: str, inputs: str = "text", **config: Any) -> Model:
    return Model(
        name,
        name,
        (Attention("layers.{}.attn"),),
        {
            "hidden_size": 24,
            "num_heads": 4,
            "num_layers": LAYERS,
            "block_size": 16,
            "input_vocab_size": 12,
            "output_vocab_size": 12,
            **config,
        },
        inputs=inputs,
        model_class=model_class,
    )


GPT = (
    gpt_like("gpt2", padded=True),
    gpt_like(
        "gpt2_by_layer", "gpt2", prefix="", scale_attn_by_inverse_layer_idx=True
    ),
    gpt_like("gptj", rotary_dim=4),
    gpt_like("codegen", rotary_dim=4),
    gpt_like("imagegpt"),
    gpt_like("openai_gpt", "openai-gpt", prefix=""),
    gpt_like("gpt_bigcode"),
    gpt_like("gpt_bigcode_heads", "gpt_bigcode", multi_query=False),
    gpt_like("biogpt", path=LLAMA_LIKE, sizes=SIZES, prefix="biogpt."),
    gpt_like(
        "xglm",
        path="layers.{}.self_attn",
        sizes={
            "d_model": 24,
            "ffn_dim": 8,
            "num_layers": LAYERS,
            "attention_heads": 4,
            "vocab_size": 12,
            "max_position_embeddings": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        prefix="model.",
    ),
    gpt_like("ctrl", path="h.{}.multi_head_attention", dff=8),
    gpt_like(
        "gpt_neo",
        path="h.{}.attn.attention",
        sizes={
            "hidden_size": 24,
            "num_layers": LAYERS,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 3,
            "vocab_size": 12,
            "max_position_embeddings": 32,
            "intermediate_size": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    gpt_like(
        "gpt_neox",
        path="layers.{}.attention",
        sizes=SIZES,
        prefix="gpt_neox.",
        hidden_size=32,
        padded=True,
    ),
    gpt_like(
        "gpt_neox_japanese",
        path="layers.{}.attention",
        sizes=SIZES,
        prefix="gpt_neox_japanese.",
        hidden_size=32,
        intermediate_multiple_size=1,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.5,
        },
    ),
    gpt_like(
        "bloom",
        path="h.{}.self_attention",
        last=".dense",
        sizes={
            "hidden_size": 24,
            "n_head": 4,
            "n_layer": LAYERS,
            "vocab_size": 12,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        padded=True,
    ),
    gpt_like("falcon", path="h.{}.self_attention", sizes=SIZES),
    gpt_like(
        "falcon_grouped",
        "falcon",
        "h.{}.self_attention",
        sizes=SIZES,
        new_decoder_architecture=True,
        num_kv_heads=2,
        bias=True,
    ),
    gpt_like(  # its eager attention adds the bias twice
        "falcon_alibi",
        "falcon",
        "h.{}.self_attention",
        sizes=SIZES,
        padded=True,
        added="attention_mask",
        implementation="sdpa",
        alibi=True,
        multi_query=False,
    ),
    gpt_like(
        "falcon_heads",
        "falcon",
        "h.{}.self_attention",
        sizes=SIZES,
        multi_query=False,
    ),
    gpt_like(
        "mpt",
        path="blocks.{}.attn",
        sizes={
            "d_model": 24,
            "n_heads": 4,
            "n_layers": LAYERS,
            "vocab_size": 12,
            "max_seq_len": 32,
            "expansion_ratio": 1,
        },
        padded=True,
    ),
    gpt_like(
        "opt",
        path="decoder.layers.{}.self_attn",
        sizes=SIZES,
        prefix="model.",
        word_embed_proj_dim=24,
        ffn_dim=8,
    ),
    bark("semantic", "BarkSemanticModel"),
    bark("coarse_acoustics", "BarkCoarseModel", bias=False),
    bark(
        "fine_acoustics",
        "BarkFineModel",
        "codes",
        n_codes_total=2,
        n_codes_given=1,
    ),
)
