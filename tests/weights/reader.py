"""Runs read_all.cpp, and compares the tensors that it read."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

import torch
from torch import Tensor


class Reader:
    """The library's reader of files, as a process that answers lines."""

    def __init__(self, program: str, folder: pathlib.Path) -> None:
        self.out = folder / "read.pt"
        self.process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the reader ended at {line}")
        return json.loads(answer)

    def read(self, path: pathlib.Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns what was found in a file, and its tensors."""
        found = self.answer(f"{path}\t{self.out}")
        if "error" in found:
            return found, {}
        return found, torch.load(self.out, weights_only=True)


def bits(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    # Elements of no dimension have no bytes to be viewed.
    flat = tensor.reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def difference(found: Tensor, expected: Tensor) -> str:
    """Returns how two tensors differ; "" if they have the same bits."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return (
            f"is {found.dtype} of {tuple(found.shape)}, expected "
            f"{expected.dtype} of {tuple(expected.shape)}"
        )
    return "" if torch.equal(bits(found), bits(expected)) else "has other values"
