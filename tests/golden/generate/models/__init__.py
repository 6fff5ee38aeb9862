"""Whole decoders with small random weights, for the example `gpt`.

A folder for each:

  config.json, model.safetensors (or several, and their index)
                           as `save_pretrained` writes them
  generation_config.json   the same
  expected.safetensors     "ids" (B, T) and their "logits" (B, T, V);
                           "prompts" (B, T), padded on the left, their
                           "lengths" (B) and the 64 "greedy" tokens after them

`drawn_TYPE_NUMBER` have configurations drawn from a grammar.

`book` has no weights but a seed: logits of the book's GPTModel. `training` has
the losses of 50 steps of it. `activations` has numbers, and what each activation
of transformers makes of them.
"""

from __future__ import annotations

from pathlib import Path

from ..golden_set import GoldenSet, LeftOut
from ..model_folders import difference_of, write_models
from . import book, training
from .activations import Activations
from .decoders import DECODERS
from .drawn import DRAWN


def make(folder: Path) -> LeftOut:
    """Writes all models that can be made here."""
    book.write(folder / "book")
    training.write(folder / "training")
    return write_models((Activations(), *DECODERS, *DRAWN), folder)


PACKS = (
    *("book", "drawn_gemma", "drawn_gpt2", "drawn_mistral"),
    *("gemma", "gemma3", "gpt2", "llama", "mistral"),
)
GOLDEN_SET = GoldenSet("models", "models", make, difference_of, "*/*", PACKS)
