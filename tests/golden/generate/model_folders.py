"""Golden sets of folders that `save_pretrained` wrote, one for each model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch_attention_reference import safetensors_file

from .differences import difference
from .golden_set import LeftOut, Unavailable

# Processors differ in the last bits, and a layer magnifies those of the one
# before: up to 1.1e-5 were seen.
TOLERANCES = {torch.float32: (1e-5, 2e-5)}


class Model(Protocol):
    """A model that writes its folder, or raises Unavailable."""

    name: str
    files: Sequence[str]

    def write(self, folder: Path) -> None: ...


def write_models(models: Iterable[Model], folder: Path) -> LeftOut:
    """Writes all models that can be made here."""
    left_out = {}
    for model in models:
        try:
            model.write(folder / model.name)
        except Unavailable as reason:
            for file in model.files:
                left_out[f"{model.name}/{file}"] = str(reason)
    return left_out


def difference_of(committed: Path, fresh: Path, file: str) -> str:
    ours, wanted = read(committed / file), read(fresh / file)
    return difference(ours, wanted, TOLERANCES)


def read(path: Path) -> dict[str, Any]:
    if path.suffix == ".json":
        return json.loads(path.read_text())
    return safetensors_file.read(path)[0]
