"""Compares `attention_from_pretrained` with `transformers` where configurations
are changed: each field dropped, null, altered or of an older style.

`python tests/golden/generate changed PROGRAM` with the program changed_models of
tests/weights. Each case is equal or refused, by us or by `transformers`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import random
import shutil
import subprocess
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from ..packs import GOLDEN
from . import GOLDEN_SET
from .edits import Edit, edits_of
from .inputs import TOKENS, draw_inputs
from .model import Attention, Model
from .models import MODELS

# Sizes that a class has where its field is dropped or null make no small model.
MOST_PARAMETERS = 20_000_000
MOST_LAYERS = 8
MOST_TOKENS = 1100
BATCH = 400
WINDOWS = ("sliding_window", "window_size", "attention_chunk_size", "local_attention")


@dataclass
class Case:
    model: Model
    edit: Edit

    @property
    def name(self) -> str:
        return f"{self.model.name}: {self.edit.name}"


class Refused(Exception):
    """`transformers` takes no such configuration, or cannot run it."""


class TooLarge(Exception):
    """The model is too large to be run."""


def configs_of(config: Any) -> Iterator[Any]:
    yield config
    for name in type(config).sub_configs:
        inner = getattr(config, name, None)
        if inner is not None:
            yield from configs_of(inner)


def tokens_of(config: Any, edit: Edit) -> int:
    """More tokens than the window, if that may have changed."""
    words = ("window", "chunk", "local", "layer_types", "pattern", "attn_every")
    if not any(word in edit.name + edit.field for word in words):
        return 40 if "dynamic" in edit.name or "longrope" in edit.name else TOKENS
    found = [
        value
        for each in configs_of(config)
        for name in WINDOWS
        if isinstance(value := getattr(each, name, None), int)
        and TOKENS < value < MOST_TOKENS
    ]
    return max(found, default=TOKENS - 6) + 6


def with_layers(model: Model, made: torch.nn.Module) -> Model:
    """The model with all layers that it has now."""

    def found(attention: Attention) -> Attention:
        layers = []
        for layer in range(MOST_LAYERS):
            with contextlib.suppress(AttributeError):
                made.get_submodule(attention.path.format(layer))
                layers.append(layer)
        # A path without the layer's number keeps its layers.
        is_named = "{}" in attention.path
        return dataclasses.replace(
            attention, layers=tuple(layers) if is_named else attention.layers
        )

    return dataclasses.replace(
        model, attention=tuple(found(each) for each in model.attention)
    )


def write(case: Case, folder: Path) -> None:
    """Writes the model's folder, or raises Refused or TooLarge."""
    model, edit = case.model, case.edit
    try:
        # As `from_pretrained` reads the numbers that JSON does not have.
        fields = PreTrainedConfig._decode_special_floats(
            json.loads(json.dumps(edit.config))
        )
        config = model.config_class().from_dict(fields)
        if "dropped" in edit.name or "null" in edit.name:
            with torch.device("meta"):
                sizes = model.make_empty(config)
            if sum(each.numel() for each in sizes.parameters()) > MOST_PARAMETERS:
                raise TooLarge
        made = model.make(config)
        model = with_layers(model, made)
        tokens = tokens_of(config, edit)
        try:
            expected = model.run(made, draw_inputs(model.inputs, tokens))
        except Exception:
            if tokens == TOKENS:
                raise
            expected = model.run(made, draw_inputs(model.inputs))
        if not expected:
            raise Refused("no attention")
    except TooLarge:
        raise
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}")
    folder.mkdir()
    model.write_tensors(made, expected, folder)
    (folder / "config.json").write_text(json.dumps(edit.config))


def compared(program: Path, folder: Path) -> dict[str, tuple[str, str]]:
    """Returns the program's word on each folder, and its message."""
    ran = subprocess.run([program, folder], capture_output=True, text=True)
    results = {}
    for line in ran.stdout.splitlines():
        parts = line.split("\t", 3)
        if len(parts) == 4 and parts[0] == "changed":
            results[parts[1]] = (parts[2], parts[3])
    return results


def batches(cases: Iterable[Case]) -> Iterator[list[Case]]:
    batch: list[Case] = []
    for case in cases:
        batch.append(case)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def cases_of(names: Iterable[str], word: str, folder: Path) -> Iterator[Case]:
    wanted = set(names)
    for model in MODELS:
        if wanted and model.name not in wanted:
            continue
        config = json.loads((folder / model.name / "config.json").read_text())
        yield from (
            Case(model, edit) for edit in edits_of(config) if word in edit.name
        )


def check(
    program: Path, names: Iterable[str] = (), word: str = "", part: str = "0/1"
) -> int:
    """Prints the cases that differ and the numbers of all; returns the number
    of those that differ."""
    warnings.simplefilter("ignore")
    first, step = (int(each) for each in part.split("/"))
    with tempfile.TemporaryDirectory() as temporary:
        GOLDEN_SET.unpack(GOLDEN, Path(temporary))
        folder = Path(temporary, GOLDEN_SET.folder)
        cases = list(cases_of(names, word, folder))
    # So that each part has some of all models.
    random.Random(1).shuffle(cases)
    cases = cases[first::step]
    counts: Counter[str] = Counter()
    for batch in batches(cases):
        with tempfile.TemporaryDirectory() as temporary:
            counts.update(check_batch(program, batch, Path(temporary)))
        print(f"{sum(counts.values())} of {len(cases)}: {dict(counts)}", flush=True)
    return counts["differs"] + counts["lost"]


def check_batch(program: Path, batch: list[Case], folder: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    written = {}
    for number, case in enumerate(batch):
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                write(case, folder / str(number))
            written[str(number)] = case
        except Refused:
            shutil.rmtree(folder / str(number), ignore_errors=True)
            counts["refused by transformers"] += 1
        except TooLarge:
            counts["too large"] += 1
    results = compared(program, folder)
    for number, case in written.items():
        word, more = results.get(number, ("lost", "the program did not say"))
        counts[word] += 1
        if word != "equal":
            print(f"{word}\t{case.name}\t{more}", flush=True)
    return counts
