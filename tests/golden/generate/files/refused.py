"""Files that must be refused."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch_attention_reference.archives import saved

from .tensors import Model, ramp, weights
from .torch_save import rewritten
from .weight_file import Content, WeightFile

LFS_POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    f"oid sha256:{'4d' * 32}\n"
    "size 548105171\n"
)


def weight_files() -> Iterator[WeightFile]:
    state = weights()
    contents = {
        "legacy.pt": saved(state, _use_new_zipfile_serialization=False),
        "legacy-tar.pt": legacy_tar(),
        "whole-module.pt": saved(Model()),
        "whole-linear.pt": saved(Model().linear),
        "malicious-posix.pt": malicious(Malicious()),
        "malicious-os.pt": malicious_as_os(),
        "malicious-protocol4.pt": malicious(Malicious(), protocol=4),
        "malicious-eval.pt": malicious(Evaluated()),
        "malicious.pkl": pickle.dumps(Malicious(), protocol=2),
        "tensor.pt": saved(ramp(3)),
        "list.pt": saved([ramp(3), ramp(2)]),
        "quantized.pt": quantized(),
        "sparse.pt": saved({"weight": torch.eye(3).to_sparse()}),
        "meta.pt": saved({"weight": torch.empty(3, device="meta")}),
        "arrays.pkl": pickle.dumps({k: t.numpy() for k, t in state.items()}),
        "array.npy": numpy_file(archive=False),
        "arrays.npz": numpy_file(archive=True),
        "empty.pt": b"",
        "lfs-pointer.safetensors": LFS_POINTER.encode(),
        "page.pt": b"<!DOCTYPE html>\n<html><body>Not found</body></html>\n",
        "model.gguf": b"GGUF\x03\x00\x00\x00" + bytes(16),
        "model.h5": b"\x89HDF\r\n\x1a\n" + bytes(16),
    }
    for name, data in contents.items():
        yield name, partial(refused, data)


def refused(data: bytes) -> Content:
    return data, None


class Malicious:
    """Runs a command when a careless reader unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("exit 1",))


class Evaluated:
    def __reduce__(self) -> tuple[Any, ...]:
        return (eval, ("1 + 1",))


def malicious(value: Any, protocol: int = 2) -> bytes:
    return saved({**weights(), "extra": value}, pickle_protocol=protocol)


def malicious_as_os() -> bytes:
    """Names os.system as written, not as the module that defines it."""

    def rename(name: str, data: bytes) -> bytes:
        if name != "data.pkl":
            return data
        assert data.count(b"cposix\nsystem\n") == 1
        return data.replace(b"cposix\nsystem\n", b"cos\nsystem\n")

    return rewritten(malicious(Malicious()), rename)


def quantized() -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = torch.quantize_per_tensor(ramp(3), 0.25, 0, torch.qint8)
        return saved({"weight": values})


def legacy_tar() -> bytes:
    """The format before 2017, as far as its kind is told from it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            data = pickle.dumps({}, protocol=2)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def numpy_file(archive: bool) -> bytes:
    buffer = io.BytesIO()
    values = weights()["linear.weight"].numpy()
    if archive:
        np.savez(buffer, weight=values)
    else:
        np.save(buffer, values)
    return buffer.getvalue()
