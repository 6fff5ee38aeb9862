"""Files of torch.save that must be read."""

from __future__ import annotations

import argparse
import io
import random
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch_attention_reference.archives import repacked, saved

from .tensors import (
    Model,
    Tensors,
    bit_dtypes,
    conjugates,
    every_dtype,
    odd_keys,
    parameters,
    ramp,
    shapes,
    tied,
    views,
    weights,
)
from .weight_file import WeightFile


def weight_files() -> Iterator[WeightFile]:
    yield from (of(f"protocol{n}", pickle_protocol=n) for n in (2, 3, 4, 5))
    yield of("ordered-dict", content=Model().state_dict)
    yield of("dict")
    yield of("state-dict-key", content=training_state)
    yield of("model-key", content=lambda: {"epoch": 1, "model": weights()})
    yield of("namespace", content=namespace)
    yield of("numpy-values", content=numpy_values)
    yield of("random-states", content=python_random_state)
    yield of("views", views)
    yield of("tied", tied)
    yield of("conjugates", conjugates)
    yield of("shapes", shapes)
    yield of("parameters", parameters)
    yield of("odd-keys", odd_keys)
    yield of("dtypes", every_dtype)
    yield of("dtypes-bits", bit_dtypes)
    yield of("views-protocol5", views, pickle_protocol=5)
    yield of("dtypes-protocol4", every_dtype, pickle_protocol=4)
    yield "cuda.pt", lambda: (on_cuda(), weights())
    yield "big-endian.pt", big_endian
    yield "without-byteorder.pt", lambda: (without_byteorder(), weights())
    yield "rezipped.pt", partial(zipped_again, zipfile.ZIP_STORED)
    yield "deflated.pt", partial(zipped_again, zipfile.ZIP_DEFLATED)
    yield of("empty-dict", dict)


def of(
    name: str,
    tensors: Callable[[], Tensors] = weights,
    content: Callable[[], Any] | None = None,
    **options: Any,
) -> WeightFile:
    """Returns a file of `content`, by default the tensors themselves."""
    return (
        f"{name}.pt",
        lambda: (saved((content or tensors)(), **options), tensors()),
    )


# --- Other values beside weights -------------------------------------------


def training_state() -> dict[str, Any]:
    """Returns a training loop's state, all safe for weights_only=True."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    model.load_state_dict(weights())
    return {
        "epoch": 3,
        "best_loss": 0.125,
        "finished": False,
        "scheduler": None,
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng_state": torch.Generator().manual_seed(1).get_state(),
        "big": [2**31, -(2**31) - 1, 2**80, -1, 255, 256, 65536],
        "shape": torch.Size([3, 4]),
        "device": torch.device("cpu"),
        "dtype": torch.bfloat16,
        "layers": ("linear", {"nested": [1, (2.5, "x"), {}]}, (), []),
        "tags": {"a", "b"},
        "bytes": b"\x00\xff",
        "array": bytearray(b"xyz"),
        "complex": 1 + 2j,
        "pi": 3.141592653589793,
    }


def namespace() -> dict[str, Any]:
    return {
        "args": argparse.Namespace(lr=0.1, sizes=[3, 4], name="run"),
        "model": weights(),
    }


def numpy_values() -> dict[str, Any]:
    return {
        "loss": np.float64(0.25),
        "steps": np.int64(12),
        "curve": np.arange(3.0),
        "model_state_dict": weights(),
    }


def python_random_state() -> dict[str, Any]:
    return {
        "python_rng": random.Random(1).getstate(),
        "numpy_rng": np.random.RandomState(1).get_state(),
        "state_dict": weights(),
    }


# --- Other machines and releases -------------------------------------------


def on_cuda() -> bytes:
    """Returns a file as saved on the second GPU of a machine."""
    with mock.patch("torch.serialization.location_tag", lambda _: "cuda:1"):
        return saved(weights())


def rewritten(
    archive: bytes,
    change: Callable[[str, bytes], bytes | None],
) -> bytes:
    """Changes the records of an archive, or drops them, by a function.

    LibTorch's writer writes it: uncompressed, aligned, with CRC.
    """
    reader = torch._C.PyTorchFileReader(io.BytesIO(archive))
    buffer = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(buffer)
    for name in reader.get_all_records():
        if name in ("version", ".data/serialization_id"):
            continue  # the writer adds both
        data = change(name, reader.get_record(name))
        if data is not None:
            writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return buffer.getvalue()


def big_endian() -> tuple[bytes, Tensors]:
    """Returns a file of a machine of the other byte order; all float32."""
    state = {"weight": ramp(3, 4), "bias": ramp(3)}

    def swap(name: str, data: bytes) -> bytes:
        if name == "byteorder":
            return b"big"
        if name.startswith("data/"):
            return np.frombuffer(data, np.float32).byteswap().tobytes()
        return data

    return rewritten(saved(state), swap), state


def zipped_again(compression: int) -> tuple[bytes, Tensors]:
    """Returns a file unpacked and packed again by another program."""
    return repacked(saved(weights()), compression), weights()


def without_byteorder() -> bytes:
    """Returns a file as releases before 2.1 wrote it."""
    extra = {"byteorder", ".format_version", ".storage_alignment"}
    return rewritten(
        saved(weights()), lambda name, data: None if name in extra else data
    )
