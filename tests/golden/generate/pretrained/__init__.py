"""Small random models of Hugging Face, as `save_pretrained` writes them.

A folder for each:

  config.json                    the configuration
  model.safetensors              the weights of its attention layers
  expected.safetensors           "LAYER.input" and "LAYER.output" of each layer:
                                 hidden states (B, T, d_in) and the output of
                                 its attention (B, T, d_out)

Of the weights all that is not attention's is left out, to keep files small.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch_attention_reference import safetensors_file

from ..differences import difference
from ..golden_set import GoldenSet, LeftOut, Unavailable
from .models import MODELS

TOLERANCES = {torch.float32: (1e-5, 1e-5)}


def make(folder: Path) -> LeftOut:
    """Writes all models that can be made here."""
    left_out = {}
    for model in MODELS:
        try:
            model.write(folder / model.name)
        except Unavailable as reason:
            for file in model.FILES:
                left_out[f"{model.name}/{file}"] = str(reason)
    return left_out


def difference_of(committed: Path, fresh: Path, file: str) -> str:
    ours, wanted = read(committed / file), read(fresh / file)
    return difference(ours, wanted, TOLERANCES)


def read(path: Path) -> dict[str, Any]:
    if path.suffix == ".json":
        return json.loads(path.read_text())
    return safetensors_file.read(path)[0]


GOLDEN_SET = GoldenSet(
    "pretrained", "pretrained", make, difference_of, pattern="*/*"
)
