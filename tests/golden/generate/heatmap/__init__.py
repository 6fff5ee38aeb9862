"""Models and weights that `torch-attention heatmap` is compared with.

  ENCODER/config.json, model.safetensors
                           a small random encoder, as `save_pretrained` writes it
  ENCODER/expected.safetensors
                           "ids" (T) and "attentions" (L, H, T, T)
  decoders.safetensors     the same of the models of the set `models`, as
                           "NAME.ids" and "NAME.attentions"
  bert/vocab.txt, cased/vocab.txt, and their tokenizer_config.json
                           vocabularies of WordPiece
  texts.json               for both, texts and their tokens
"""

from __future__ import annotations

from pathlib import Path

from ..golden_set import GoldenSet, LeftOut, Unavailable
from ..model_folders import difference_of as difference_of_model
from ..model_folders import write_models
from . import word_pieces
from .encoders import ENCODERS, write_decoders

DECODERS = "decoders.safetensors"


def make(folder: Path) -> LeftOut:
    """Writes all that can be made here."""
    left_out = write_models(ENCODERS, folder)
    word_pieces.write_vocabularies(folder)
    for file, write in (
        (DECODERS, write_decoders),
        (word_pieces.TEXTS, word_pieces.write_texts),
    ):
        try:
            write(folder / file)
        except Unavailable as reason:
            left_out[file] = str(reason)
    return left_out


def difference_of(committed: Path, fresh: Path, file: str) -> str:
    if file.endswith(".txt"):
        same = (committed / file).read_bytes() == (fresh / file).read_bytes()
        return "" if same else "is another text"
    return difference_of_model(committed, fresh, file)


PACKS = ("bert", "electra")
GOLDEN_SET = GoldenSet(
    "heatmap", "heatmap", make, difference_of, "**/*", PACKS
)
