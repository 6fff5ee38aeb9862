"""safetensors files, one by one and in shards."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from torch_attention_reference import ExportError, safetensors_file

from .tensors import Tensors, every_dtype, odd_keys, shapes, weights
from .weight_file import Content, WeightFile

try:
    from safetensors.torch import save_file
except ImportError:  # then ours alone, which writes the same bytes
    save_file = None

SHARDS = {
    "model-00001-of-00002.safetensors": ("linear.weight", "count"),
    "model-00002-of-00002.safetensors": ("linear.bias", "mask"),
}
INDEX = "sharded/model.safetensors.index.json"


def weight_files() -> Iterator[WeightFile]:
    pytorch = {"format": "pt"}
    yield "plain.safetensors", lambda: of(weights())
    yield "metadata.safetensors", lambda: of(weights(), pytorch)
    yield "checksums.safetensors", lambda: of(weights(), pytorch, crc=True)
    yield "shapes.safetensors", lambda: of(shapes())
    yield "odd-keys.safetensors", lambda: of(odd_keys())
    yield "dtypes.safetensors", lambda: of(stored_dtypes())
    yield "empty.safetensors", lambda: of({})
    yield INDEX, lambda: (index(), weights())
    for shard, keys in SHARDS.items():
        tensors = {key: weights()[key] for key in keys}
        yield f"sharded/{shard}", partial(of, tensors, pytorch)


def of(
    tensors: Tensors, metadata: dict[str, str] | None = None, crc: bool = False
) -> Content:
    """Writes by our writer, and compares with the safetensors package's."""
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder, "ours")
        safetensors_file.write(ours, tensors, metadata, crc)
        data = ours.read_bytes()
        # With several entries the package has their order by chance.
        if save_file and not crc and len(metadata or {}) < 2:
            theirs = Path(folder, "theirs")
            save_file(tensors, theirs, metadata)
            if theirs.read_bytes() != data:
                raise ExportError("the safetensors package writes other bytes")
    return data, tensors


def stored_dtypes() -> Tensors:
    stored = safetensors_file.NAMES
    return {k: t for k, t in every_dtype().items() if t.dtype in stored}


def index() -> bytes:
    """Returns the file that says which shard has which tensor."""
    size = sum(tensor.nbytes for tensor in weights().values())
    content = {
        "metadata": {"total_size": size},
        "weight_map": {
            key: shard for shard, keys in SHARDS.items() for key in keys
        },
    }
    return (json.dumps(content, indent=2) + "\n").encode()
