"""Small weight files of every format.

Beside the files lies expected.json, which says what a reader must give:

  {FILE: {KEY: {"dtype": ..., "shape": [...], "values": [...]}}}
  {FILE: {"error": true}}    to be refused

Values are in row-major order: numbers, booleans, [real, imaginary] pairs. A
dtype without numbers in LibTorch has its raw "bytes" instead. The keys of a
state dict that is an entry of a training state are those of the state dict.
"""

from __future__ import annotations

import functools
import itertools
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_attention_reference import ExportError, safetensors_file
from torch_attention_reference.archives import state_dict_in

from ..golden_set import GoldenSet, LeftOut, Unavailable
from . import exported, refused, safetensors, torch_save, torch_script
from .tensors import describe_all

MAXIMUM_SIZE = 20_000
EXPECTED = "expected.json"
REFUSED = {"error": True}


# --- Writing ---------------------------------------------------------------


def make(folder: Path) -> LeftOut:
    """Writes all files and what is expected of them."""
    expected = {}
    left_out = {}
    for name, content in itertools.chain(
        torch_save.weight_files(),
        refused.weight_files(),
        torch_script.weight_files(),
        exported.weight_files(),
        safetensors.weight_files(),
    ):
        try:
            data, tensors = content()
        except Unavailable as reason:
            left_out[name] = str(reason)
            continue
        if len(data) > MAXIMUM_SIZE:
            raise ExportError(f"{name} has {len(data)} bytes")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        expected[name] = REFUSED if tensors is None else describe_all(tensors)
    (folder / EXPECTED).write_text(as_json(expected), encoding="utf-8")
    return left_out


def as_json(expected: dict[str, Any]) -> str:
    """Returns JSON with one line for each tensor."""
    files = []
    for file, entry in expected.items():
        if entry == REFUSED:
            files.append(f"{json.dumps(file)}: {json.dumps(entry)}")
            continue
        tensors = [
            f"  {json.dumps(key)}: {json.dumps(tensor, allow_nan=False)}"
            for key, tensor in entry.items()
        ]
        files.append(f"{json.dumps(file)}: {{\n" + ",\n".join(tensors) + "\n}")
    return "{\n" + ",\n".join(files) + "\n}\n"


# --- Checking --------------------------------------------------------------

# torch.load(weights_only=True) refuses these: pickle protocols above 2, and
# classes beside the weights.
TRUSTED = {
    "dtypes-protocol4.pt",
    "namespace.pt",
    "numpy-values.pt",
    "protocol3.pt",
    "protocol4.pt",
    "protocol5.pt",
    "random-states.pt",
    "views-protocol5.pt",
}


def difference(committed: Path, fresh: Path, file: str) -> str:
    """Compares what is expected of a file, and reads the file by Python."""
    entries = expected_in(committed)
    if file == EXPECTED:
        return difference_of_expected(committed, fresh)
    wanted = expected_in(fresh)[file]
    if as_text(entries.get(file)) != as_text(wanted):
        return f"{EXPECTED} differs from what is made again"
    path = committed / file
    if wanted == REFUSED:
        return "" if is_harmless(path) else "is not refused"
    tensors = describe_all(read(path))
    if tensors.keys() != wanted.keys():
        return "has other keys"
    differ = [k for k, t in tensors.items() if as_text(t) != as_text(wanted[k])]
    return f"differs in {', '.join(differ)}" if differ else ""


def difference_of_expected(committed: Path, fresh: Path) -> str:
    entries = expected_in(committed)
    absent = [name for name in entries if not (committed / name).is_file()]
    if absent:
        return f"names what is not there: {', '.join(absent)}"
    wanted = expected_in(fresh)
    differ = [k for k in wanted if as_text(entries.get(k)) != as_text(wanted[k])]
    return f"differs in {', '.join(differ)}" if differ else ""


@functools.cache
def expected_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / EXPECTED).read_text(encoding="utf-8"))


def as_text(entry: Any) -> str:
    """Returns text to compare: 0.0 and -0.0, 1 and 1.0 differ in it."""
    return json.dumps(entry)


def read(path: Path) -> Mapping[str, Tensor]:
    """Returns the tensors of a file, as Python's own readers give them."""
    if path.name.endswith(".index.json"):
        index = json.loads(path.read_text(encoding="utf-8"))
        shards = sorted(set(index["weight_map"].values()))
        return {
            key: tensor
            for shard in shards
            for key, tensor in read(path.with_name(shard)).items()
        }
    if path.suffix == ".safetensors":
        tensors, metadata = safetensors_file.read(path)
        wrong = safetensors_file.wrong_checksums(tensors, metadata)
        if wrong:
            raise ExportError(f"wrong checksums: {', '.join(wrong)}")
        return tensors
    if path.suffix == ".pt2":
        return dict(torch.export.load(path).state_dict)
    if path.stem.startswith(("traced", "scripted")):
        return torch.jit.load(path).state_dict()
    safe = path.name not in TRUSTED
    value = torch.load(path, map_location="cpu", weights_only=safe)
    return state_dict_in(value, path)


def is_harmless(path: Path) -> bool:
    """Tells if Python, too, runs nothing that a malicious file names."""
    if not path.name.startswith("malicious"):
        return True
    try:
        torch.load(path, weights_only=True)
    except pickle.UnpicklingError:
        return True
    return False


GOLDEN_SET = GoldenSet("files", "files", make, difference, pattern="**/*")
