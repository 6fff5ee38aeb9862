"""Models whose scores add products of content and position: DeBERTa."""

from __future__ import annotations

from typing import Any

from .encoders import SOUNDS
from .kinds import SIZES
from .model import Attention, Model

LAYERS = "encoder.layer.{}.attention"
BOTH = ["c2p", "p2c"]
# Fewer distances than tokens have.
CLIPPED = {"relative_attention": True, "max_relative_positions": 5}
# Distances of three tokens and more share buckets.
BUCKETS = {
    "relative_attention": True,
    "max_relative_positions": 7,
    "position_buckets": 4,
}
NORM = {"norm_rel_ebd": "layer_norm", "layer_norm_eps": 0.1}


def disentangled(model_type: str, label: str = "", **config: Any) -> Model:
    is_sound = model_type == "sew-d"
    return Model(
        f"{model_type}_{label}".rstrip("_").replace("-", "_"),
        model_type,
        (
            Attention(
                f"encoder.{LAYERS}" if is_sound else LAYERS,
                first=".self",
                last=".output.dense",
            ),
        ),
        {**(SOUNDS if is_sound else SIZES), **config},
        inputs="sound" if is_sound else "text",
        padded=not is_sound,
    )


DISENTANGLED = (
    disentangled("deberta", **CLIPPED, pos_att_type=BOTH),
    disentangled("deberta", "c2p", relative_attention=True, pos_att_type="C2P"),
    disentangled("deberta", "p2c", **CLIPPED, pos_att_type=["p2c"]),
    disentangled("deberta", "plain", pos_att_type=BOTH),
    disentangled(
        "deberta-v2",
        **BUCKETS,
        **NORM,
        pos_att_type="p2c|c2p",
        share_att_key=True,
    ),
    disentangled("deberta-v2", "own", **BUCKETS, pos_att_type=BOTH),
    disentangled("deberta-v2", "c2p", **BUCKETS, **NORM, pos_att_type=["c2p"]),
    disentangled(
        "deberta-v2", "p2c", **CLIPPED, pos_att_type="p2c", share_att_key=True
    ),
    disentangled("deberta-v2", "plain", pos_att_type=BOTH),
    disentangled("sew-d", **NORM, position_buckets=6, max_position_embeddings=8),
    disentangled("sew-d", "own", **BUCKETS, norm_rel_ebd="none", share_att_key=False),
)
