"""Whole decoders with small random weights, for the example `gpt`.

A folder for each:

  config.json, model.safetensors (or several, and their index)
                           as `save_pretrained` writes them
  generation_config.json   the same
  expected.safetensors     "ids" (B, T) and their "logits" (B, T, V);
                           "prompts" (B, T), padded on the left, their
                           "lengths" (B) and the 64 "greedy" tokens after them

`book` has no weights but a seed: logits of the book's GPTModel. `training` has
the losses of 50 steps of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch_attention_reference import safetensors_file

from ..differences import difference
from ..golden_set import GoldenSet, LeftOut, Unavailable
from . import book, training
from .decoders import DECODERS

TOLERANCES = {torch.float32: (1e-5, 1e-5)}


def make(folder: Path) -> LeftOut:
    """Writes all models that can be made here."""
    book.write(folder / "book")
    training.write(folder / "training")
    left_out = {}
    for model in DECODERS:
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


GOLDEN_SET = GoldenSet("models", "models", make, difference_of, pattern="*/*")
