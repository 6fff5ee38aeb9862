"""Models whose tokens see a window and global tokens."""

from __future__ import annotations

from typing import Any

from .encoder_decoders import STACKS
from .kinds import SIZES
from .model import Attention, Model, attention_of_decoder


def longformer(label: str, window: int | list[int], inputs: str) -> Model:
    return Model(
        f"longformer_{label}",
        "longformer",
        (
            Attention(
                "encoder.layer.{}.attention", first=".self", last=".output.dense"
            ),
        ),
        {**SIZES, "attention_window": window},
        inputs=inputs,
    )


def led(label: str, window: int | list[int], inputs: str, **config: Any) -> Model:
    return Model(
        f"led_{label}",
        "led",
        (
            Attention("encoder.layers.{}.self_attn", label="encoder."),
            *attention_of_decoder("decoder.layers"),
        ),
        {
            **STACKS,
            "max_encoder_position_embeddings": 32,
            "max_decoder_position_embeddings": 16,
            "attention_window": window,
            **config,
        },
        inputs=inputs,
    )


LONGFORMER = (
    longformer("first", 4, "text with a global token"),
    longformer("some", [4, 8], "text with global tokens"),
    longformer("none", 6, "text"),
    led("first", 4, "text with a global token to text"),
    led("some", [8, 4], "text with global tokens to text"),
)
