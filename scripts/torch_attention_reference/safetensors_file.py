"""Reads and writes safetensors files with torch and NumPy alone.

A file is the length of its header (8 bytes, little endian), the header (JSON:
name -> dtype, shape and place of the data), and the data.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import ExportError
from .archives import write_file

# In the order of the safetensors package, which sorts by it: wide elements
# first, so that all of them are aligned.
_DTYPES = {
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "F32": "float32",
    "U32": "uint32",
    "I32": "int32",
    "BF16": "bfloat16",
    "F16": "float16",
    "U16": "uint16",
    "I16": "int16",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
# PyTorch before 2.7 lacks some.
DTYPES = {
    name: getattr(torch, dtype)
    for name, dtype in _DTYPES.items()
    if hasattr(torch, dtype)
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

CRC_PREFIX = "crc32:"


def to_bytes(tensor: Tensor) -> bytes:
    """Returns the elements in row-major order, little endian."""
    # Views of conjugates and negatives, expanded and sliced tensors are all
    # written out; what shares memory is written once for each name.
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = tensor.flatten().view(torch.uint8)
    return flat.numpy().tobytes()


def write(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    crc: bool = False,
) -> None:
    """Writes all of a file, or nothing.

    With `crc` the metadata also hold, for every tensor, the CRC-32 of its
    bytes under "crc32:" and its name.
    """
    for name, tensor in tensors.items():
        if tensor.is_sparse or tensor.is_quantized or tensor.is_meta:
            raise ExportError(f"{name}: only dense tensors can be stored")
        if tensor.dtype not in NAMES:
            message = f"safetensors has no dtype for {tensor.dtype}"
            raise ExportError(f"{name}: {message}")
    order = list(DTYPES.values())
    names = sorted(tensors, key=lambda n: (order.index(tensors[n].dtype), n))

    metadata = dict(metadata or {})
    header: dict[str, Any] = {}
    data = []
    end = 0
    for name in names:
        tensor = tensors[name]
        data.append(to_bytes(tensor))
        begin, end = end, end + len(data[-1])
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        if crc:
            metadata[CRC_PREFIX + name] = f"{zlib.crc32(data[-1]):08x}"
    if metadata:
        header = {"__metadata__": metadata, **header}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    encoded = text.encode()
    encoded += b" " * (-len(encoded) % 8)

    write_file(path, [len(encoded).to_bytes(8, "little"), encoded, *data])


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns every tensor of a file, and its metadata."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:start])
        metadata = header.pop("__metadata__", {})
        return {
            name: from_bytes(
                data[slice(*(start + end for end in entry["data_offsets"]))],
                DTYPES[entry["dtype"]],
                entry["shape"],
            )
            for name, entry in header.items()
        }, metadata
    except (
        AttributeError,
        KeyError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        message = f"{path}: not a readable safetensors file"
        raise ExportError(f"{message}: {error}") from error


def from_bytes(data: bytearray, dtype: torch.dtype, shape: list[int]) -> Tensor:
    """Returns the tensor that `to_bytes` was given."""
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).view(shape)


def wrong_checksums(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> list[str]:
    """Returns the names of tensors that differ from their recorded CRC-32."""
    return [
        name
        for name, tensor in tensors.items()
        if CRC_PREFIX + name in metadata
        and int(metadata[CRC_PREFIX + name], 16) != zlib.crc32(to_bytes(tensor))
    ]
