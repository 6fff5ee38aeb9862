"""Traced models of Hugging Face, which the tests swap attention in.

  NAME.pt                        the model, as torch.jit.save writes it
  NAME.expected.pt               its inputs in order, and "output"
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ..golden_set import GoldenSet, LeftOut

sys.path.append(str(Path(__file__).parents[3] / "jit"))

from model_case import Size  # noqa: E402
from transformers_models import has_transformers, transformers  # noqa: E402

SIZE = Size(batch=2, tokens=5, width=16, heads=4, layers=1)
NAMES = ["gemma2-eager"] + [
    f"{name}-{kind}"
    for kind in ("eager", "sdpa")
    for name in ("gpt2", "llama", "bert", "bert-mask")
]


def make(folder: Path) -> LeftOut:
    """Writes all models, if transformers is installed."""
    if not has_transformers():
        return {
            f"{name}{ending}": "transformers is not installed"
            for name in NAMES
            for ending in (".pt", ".expected.pt")
        }
    torch.manual_seed(1)
    for case in transformers(SIZE):
        torch.jit.save(case.script, folder / f"{case.name}.pt")
        output = case.script(*case.inputs.values())[0]
        torch.save(
            {**case.inputs, "output": output.detach()},
            folder / f"{case.name}.expected.pt",
        )
    return {}


def compare(committed: Path, fresh: Path, file: str) -> str:
    """Returns how two models, or what they gave, differ."""
    name = file.split(".")[0]
    if file.endswith(".expected.pt"):
        found = [
            torch.load(x / file, weights_only=True) for x in (committed, fresh)
        ]
    else:
        inputs = torch.load(fresh / f"{name}.expected.pt", weights_only=True)
        inputs.pop("output")
        found = [
            {"output": torch.jit.load(x / file)(*inputs.values())[0]}
            for x in (committed, fresh)
        ]
    old, new = found
    if list(old) != list(new):
        return f"has {list(old)}, not {list(new)}"
    for key, value in new.items():
        if not torch.allclose(old[key], value, 1e-5, 1e-5):
            return f"{key} differs"
    return ""


GOLDEN_SET = GoldenSet(
    "jit", "jit", make, compare, packs=("bert", "gemma2")
)
