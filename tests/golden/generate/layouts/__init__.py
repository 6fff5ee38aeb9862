"""Weights of many attention classes, and the outputs of these classes.

See case.py for what is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch_attention_reference import safetensors_file

from ..differences import difference, flatten
from ..golden_set import GoldenSet, LeftOut, Unavailable
from . import documents, hugging_face, joined

TOLERANCES = {torch.float32: (1e-6, 1e-6)}


def make(folder: Path) -> LeftOut:
    """Writes all cases that can be made here."""
    left_out = {}
    for case in (*documents.cases(), *joined.cases(), *hugging_face.cases()):
        try:
            case.write(folder)
        except Unavailable as reason:
            for file in (case.file, case.expected_file):
                left_out[file] = str(reason)
    return left_out


def difference_of(committed: Path, fresh: Path, file: str) -> str:
    ours, wanted = read(committed / file), read(fresh / file)
    return difference(ours, wanted, TOLERANCES)


def read(path: Path) -> dict[str, Any]:
    """Returns a file of a case as one dict of dotted names."""
    if path.suffix == ".pt":
        return flatten(torch.load(path, weights_only=True))
    tensors, metadata = safetensors_file.read(path)
    return flatten({"metadata": metadata, "tensors": tensors})


GOLDEN_SET = GoldenSet(
    "layouts", "layouts", make, difference_of, packs=("bart", "llama")
)
