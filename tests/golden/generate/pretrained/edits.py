"""Edits of a configuration: every field dropped, null, altered, of an older
style, and fields that other models have."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Config = dict[str, Any]

# The library finds the model by it.
KEPT = ("model_type", "transformers_version", "architectures", "auto_map")
# Parts of the names of fields that no attention reads.
OF_NO_ATTENTION = ("token", "vocab", "label", "dtype", "_id", "init", "cache")
PARTS = (
    "text_config",
    "vision_config",
    "audio_config",
    "encoder",
    "decoder",
    "encoder_config",
    "decoder_config",
    "mask_decoder_config",
    "asr_config",
    "attn_config",
    "semantic_config",
)

SCALINGS = (
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    {"rope_type": "yarn", "factor": 4.0, "truncate": False, "beta_fast": 8.0},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    {"rope_type": "longrope", "factor": 4.0},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "default"},
)

# Fields that some classes read, and others ignore.
OF_OTHERS: Config = {
    "_sliding_window_pattern": 2,
    "alibi": True,
    "attention_bias": True,
    "attention_chunk_size": 4,
    "attention_multiplier": 0.4,
    "attention_out_bias": True,
    "attn_logit_softcapping": 2.0,
    "bias": True,
    "clip_qkv": 0.2,
    "full_attention_interval": 2,
    "global_attn_every_n_layers": 2,
    "head_dim": 8,
    "is_causal": False,
    "is_decoder": True,
    "kv_channels": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "local_attention": 4,
    "max_window_layers": 1,
    "no_rope_layers": [1, 0],
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 1,
    "original_max_position_embeddings": 8,
    "partial_rotary_factor": 0.5,
    "position_embedding_type": "relative_key",
    "qk_layernorm": True,
    "qkv_bias": True,
    "query_pre_attn_scalar": 3,
    "rope_interleaved": True,
    "rope_local_base_freq": 50.0,
    "rope_theta": 77.0,
    "rotary_emb_base": 77,
    "rotary_pct": 0.5,
    "scale_attn_by_inverse_layer_idx": True,
    "scale_attn_weights": False,
    "sliding_window": 2,
    "sliding_window_pattern": 2,
    "use_bias": True,
    "use_bidirectional_attention": True,
    "use_qk_norm": True,
    "use_sliding_window": True,
    "window_size": 3,
}


class Edit:
    """A changed configuration, and what was changed, in words."""

    def __init__(self, name: str, config: Config, field: str = "") -> None:
        self.name = name
        self.config = config
        self.field = field


def places(config: Config, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths to the objects that hold fields: the whole, and its parts."""
    yield path
    for name, value in config.items():
        if isinstance(value, dict) and name in PARTS:
            yield from places(value, (*path, name))


def at(config: Config, path: Sequence[str]) -> Config:
    for name in path:
        config = config[name]
    return config


def other_values(name: str, value: Any) -> list[Any]:
    """Values that the field may have as well."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value // 2] if value > 1 else [1 - value]
    if isinstance(value, float):
        return [value * 1.5 + 0.01]
    if isinstance(value, list) and len(value) > 1:
        return [value[1:] + value[:1], value[:1]]
    return []


def edits_of(config: Config, seed: int = 1) -> Iterator[Edit]:
    """All edits of a configuration."""
    draw = random.Random(seed)
    for path in places(config):
        here = at(config, path)

        def edit(name: str, changes: Mapping[str, Any], field: str = "") -> Edit:
            """The object with other fields: `...` drops one."""
            changed = copy.deepcopy(config)
            target = at(changed, path)
            for key, value in copy.deepcopy(dict(changes)).items():
                target.pop(key, None)
                if value is not ...:
                    target[key] = value
            return Edit(".".join((*path, name)), changed, field)

        for name, value in here.items():
            is_of_others = any(word in name for word in OF_NO_ATTENTION)
            if is_of_others or (name in KEPT and not path):
                continue
            yield edit(f"{name} dropped", {name: ...}, name)
            yield edit(f"{name} null", {name: None}, name)
            for other in other_values(name, value):
                yield edit(f"{name} = {other}", {name: other}, name)
        yield from layer_edits(here, edit)
        yield from rotary_edits(here, edit)
        for name, value in OF_OTHERS.items():
            if name not in here:
                yield edit(f"{name} added", {name: value}, name)
        names = [name for name in here if name not in KEPT]
        for _ in range(4 if len(names) > 4 else 0):
            few = draw.sample(names, 3)
            yield edit(", ".join(few) + " dropped", dict.fromkeys(few, ...))


def layer_edits(here: Config, edit: Any) -> Iterator[Edit]:
    """More layers, whose types follow from their number."""
    if "layer_types" not in here and "sliding_window" not in here:
        return
    counts = [n for n in ("num_hidden_layers", "n_layer", "num_layers") if n in here]
    lists = [
        name
        for name, value in here.items()
        if isinstance(value, list) and len(value) == 2 and name not in KEPT
    ]
    per_layer = {name: ... for name in (*lists, "per_layer_config") if name in here}
    for count in counts:
        for layers in (1, 3, 7):
            changes = {**per_layer, count: layers}
            yield edit(f"{layers} layers", changes, "layer_types")
        for pattern in ("sliding_window_pattern", "_sliding_window_pattern"):
            yield edit(
                f"7 layers, {pattern} 2", {**changes, pattern: 2}, "layer_types"
            )


def rotary_edits(here: Config, edit: Any) -> Iterator[Edit]:
    """Styles of the rotary embedding, of all versions."""
    if "rope_parameters" not in here:
        for scaling in SCALINGS[:4]:
            kind = scaling["rope_type"]
            yield edit(f"rope_scaling {kind} added", {"rope_scaling": scaling})
        return
    now = here["rope_parameters"]
    dim = here.get("head_dim") or here.get("hidden_size", 8) // (
        here.get("num_attention_heads") or 1
    )
    for base in SCALINGS:
        scaling = dict(base)
        if scaling["rope_type"] == "longrope":
            share = (now or {}).get("partial_rotary_factor") or 1
            pairs = int(dim * share) // 2
            scaling["short_factor"] = [1.0 + 0.1 * i for i in range(pairs)]
            scaling["long_factor"] = [1.0 + 0.5 * i for i in range(pairs)]
            scaling["original_max_position_embeddings"] = 8
        kind = "{rope_type}{partial}".format(
            rope_type=scaling["rope_type"],
            partial=" partial" if "partial_rotary_factor" in scaling else "",
        )
        newer = {"rope_theta": 50.0, **scaling}
        older = {"type" if k == "rope_type" else k: v for k, v in scaling.items()}
        by_type = {"sliding_attention": {"rope_type": "default", "rope_theta": 9.0}}
        both = {"full_attention": newer, **by_type}
        yield edit(f"{kind}", {"rope_parameters": newer}, "rope")
        yield edit(f"{kind} of each type", {"rope_parameters": both}, "rope")
        yield edit(
            f"{kind} of old style",
            {"rope_parameters": ..., "rope_theta": 50.0, "rope_scaling": older},
            "rope",
        )
        if scaling["rope_type"] not in ("linear", "yarn"):
            continue
        yield edit(f"{kind} without theta", {"rope_parameters": scaling}, "rope")
        yield edit(f"{kind} of one type", {"rope_parameters": {"full_attention": newer}})
        yield edit(
            f"{kind} of each type, and for all",
            {"rope_parameters": {**both, **newer}},
        )
        yield edit(
            f"{kind} of old style without theta",
            {"rope_parameters": ..., "rope_scaling": older},
        )
        yield edit(
            f"{kind} of both styles",
            {"rope_theta": 60.0, "rope_scaling": older},
        )
    yield edit("old theta", {"rope_parameters": ..., "rope_theta": 50.0})
    yield edit(
        "old theta, share",
        {"rope_parameters": ..., "rope_theta": 50.0, "partial_rotary_factor": 0.5},
    )
    yield edit(
        "old theta, null scaling",
        {"rope_parameters": ..., "rope_theta": 50.0, "rope_scaling": None},
    )
    yield edit(
        "old thetas of two types",
        {"rope_parameters": ..., "rope_theta": 50.0, "rope_local_base_freq": 7.0},
    )
    yield edit("theta beside parameters", {"rope_theta": 50.0})
    for name, value in (now or {}).items():
        changes = {k: v for k, v in now.items() if k != name}
        yield edit(f"rope_parameters.{name} dropped", {"rope_parameters": changes})
        for other in [None, *other_values(name, value)]:
            yield edit(
                f"rope_parameters.{name} = {other}",
                {"rope_parameters": {**now, name: other}},
            )
        if not isinstance(value, dict):
            continue
        for inner in value:
            less = {k: v for k, v in value.items() if k != inner}
            yield edit(
                f"rope_parameters.{name}.{inner} dropped",
                {"rope_parameters": {**now, name: less}},
            )
