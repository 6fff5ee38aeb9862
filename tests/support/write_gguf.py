"""Writes the folder of a Qwen3 as a GGUF file with F32 tensors, for the pages."""

from __future__ import annotations

import json
import struct
from pathlib import Path

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
}
UINT32, FLOAT32, TEXT = 4, 6, 8


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def name_in_gguf(name: str) -> str:
    path, suffix = name.rsplit(".", 1)
    layer = ""
    if path.startswith("model.layers."):
        _, _, number, path = path.split(".", 3)
        layer = f"blk.{number}."
    return f"{layer}{NAMES[path]}.{suffix}"


def metadata(config: dict) -> list[bytes]:
    rope = config["rope_parameters"]["rope_theta"]
    numbers = {"rope.freq_base": rope}
    numbers["attention.layer_norm_rms_epsilon"] = config["rms_norm_eps"]
    entries = [entry("general.architecture", TEXT, text("qwen3"))]
    for key, field in SIZES.items():
        entries.append(entry(f"qwen3.{key}", UINT32, struct.pack("<I", config[field])))
    for key, number in numbers.items():
        entries.append(entry(f"qwen3.{key}", FLOAT32, struct.pack("<f", number)))
    return entries


def write_gguf(folder: str, path: str) -> None:
    config = json.loads((Path(folder) / "config.json").read_text())
    weights = (Path(folder) / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", weights)
    header = json.loads(weights[8 : 8 + length])
    header.pop("__metadata__", None)
    infos, data = b"", b""
    for name, tensor in header.items():
        assert tensor["dtype"] == "F32", tensor
        begin, end = (8 + length + at for at in tensor["data_offsets"])
        data += bytes(-len(data) % 32)
        shape = tensor["shape"][::-1]
        infos += text(name_in_gguf(name)) + struct.pack("<I", len(shape))
        infos += struct.pack(f"<{len(shape)}QIQ", *shape, 0, len(data))
        data += weights[begin:end]
    entries = metadata(config)
    start = b"GGUF" + struct.pack("<IQQ", 3, len(header), len(entries))
    start += b"".join(entries) + infos
    Path(path).write_bytes(start + bytes(-len(start) % 32) + data)
