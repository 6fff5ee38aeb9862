"""Files of torch.save and TorchScript, and how files are written."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import ExportError

# The keys under which checkpoints of training loops have the state dict.
NESTED = ("state_dict", "model_state_dict", "model")


def saved(value: Any, **options: Any) -> bytes:
    """Returns the file that torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def scripted(module: torch.jit.ScriptModule) -> bytes:
    """Returns the file that torch.jit.save writes."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()


def repacked(archive: bytes, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Packs an archive again by Python's zipfile.

    The debug records are dropped: they hold file names of this machine.
    """
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(archive)) as old,
        zipfile.ZipFile(buffer, "w", compression) as new,
    ):
        for record in old.namelist():
            if not record.endswith(".debug_pkl"):
                # A ZipInfo of its own has a fixed date.
                info = zipfile.ZipInfo(record)
                info.compress_type = compression
                new.writestr(info, old.read(record))
    return buffer.getvalue()


def write_file(path: Path, parts: Iterable[bytes]) -> None:
    """Writes a file beside `path`, then renames it: all of it or nothing."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.writelines(parts)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def state_dict_in(value: Any, path: Path) -> Mapping[str, Tensor]:
    """Returns a file's state dict, or the one in a training loop's file."""
    if not isinstance(value, Mapping):
        kind = type(value).__name__
        raise ExportError(f"{path} holds no state dict, but {kind}")
    for key in NESTED:
        if isinstance(value.get(key), Mapping):
            return value[key]
    return value
