"""The classes that the library mirrors: see case.py for what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch_attention_reference.recording import TOLERANCES

from ..differences import difference, flatten
from ..golden_set import GoldenSet, LeftOut
from .case import Case, write_all

BF16 = torch.bfloat16
F64 = torch.float64

# float64 cases have widths that are powers of four: their initial weights,
# drawn as float32 within 1 / sqrt(width), are then the same to the last bit on
# every CPU. The bfloat16 case is small and has no bias: gradients that are
# the small rest of large sums, as the key bias's is, would be rounding noise.
GOLDEN = [
    Case("self-v1", 3, 2, 6),
    Case("self-v2", 3, 2, 6),
    Case("self-v2", 4, 4, 5, qkv_bias=True, dtype=F64),
    Case("single", 3, 2, 6, 6),
    Case("single", 4, 1, 4, 6, qkv_bias=True, causal=False, dtype=F64),
    Case("single", 4, 4, 5, 8, qkv_bias=True, dropout=0.5, training=True),
    Case("wrapper", 3, 2, 6, 6, num_heads=2),
    Case(
        "wrapper",
        4,
        2,
        3,
        4,
        num_heads=3,
        qkv_bias=True,
        causal=False,
        dropout=0.2,
        training=True,
    ),
    Case("mha", 3, 2, 6, 6, num_heads=2),
    Case(
        "mha", 16, 4, 4, 5, num_heads=2, qkv_bias=True, causal=False, dtype=F64
    ),
    Case("mha", 4, 4, 5, 8, num_heads=2, dtype=BF16),
    Case("mha", 6, 6, 1, 1, num_heads=3, qkv_bias=True),
    Case("mha", 5, 8, 1, 8, num_heads=4, causal=False, training=True),
    Case("mha", 8, 24, 5, 8, num_heads=12, qkv_bias=True, dropout=0.1),
    Case(
        "mha",
        8,
        8,
        8,
        8,
        num_heads=4,
        qkv_bias=True,
        dropout=0.1,
        training=True,
    ),
]


def make(folder: Path) -> LeftOut:
    write_all(folder, GOLDEN)
    return {}


def difference_of(committed: Path, fresh: Path, file: str) -> str:
    ours, wanted = read(committed / file), read(fresh / file)
    skipped = ["draws"]
    dropout = wanted["training"] and wanted.get("config.dropout", 0.0) > 0
    if dropout and not torch.equal(ours["draws"], wanted["draws"]):
        print(f"{file}: this torch draws dropout differently; not compared")
        skipped += ["output", "gradients", "trained"]

    def skip_values(name: str) -> bool:
        return name.split(".")[0] in skipped

    return difference(ours, wanted, TOLERANCES, skip_values)


def read(path: Path) -> dict[str, Any]:
    """Returns a file of a case as one dict of dotted names."""
    if path.name.endswith(".expected.pt"):
        return flatten(torch.load(path, weights_only=True))
    archive = torch.jit.load(str(path))
    return {**archive.state_dict(), "training": archive.training}


GOLDEN_SET = GoldenSet("reference", "", make, difference_of)
