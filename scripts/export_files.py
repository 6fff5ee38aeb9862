#!/usr/bin/env python3
"""Writes small weight files of every format for the C++ tests.

Beside the files lies expected.json, what a reader has to give for each:

  {FILE: {KEY: {"dtype": ..., "shape": [...], "values": [...]}}}
  {FILE: {"error": true}}    to be refused

Values are in row-major order: numbers, booleans, [real, imaginary] pairs. A
dtype without numbers in LibTorch has its raw "bytes" instead. The keys of a
state dict that is an entry of a training state are those of the state dict.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import logging
import os
import pickle
import random
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional
from unittest import mock

import numpy as np
import safetensors_file
import torch
from torch import Tensor, nn
from torch._export.serde.schema import SCHEMA_VERSION
from torch._export.serde.serialize import serialize
from torch.export.pt2_archive._package import PT2ArchiveWriter

try:
    from safetensors.torch import save_file
except ImportError:  # then ours alone, which writes the same bytes
    save_file = None

MAXIMUM_SIZE = 20_000
EXPECTED = "expected.json"

Tensors = dict[str, Tensor]


class ExportError(Exception):
    """A failure to be told in one line."""


# --- What the files hold ---------------------------------------------------


def ramp(*shape: int, start: float = -1.0, step: float = 0.25) -> Tensor:
    """Different numbers that every float dtype holds exactly."""
    count = torch.Size(shape).numel()
    return (start + step * torch.arange(count)).reshape(shape)


def weights() -> Tensors:
    """The same few tensors for most files."""
    return {
        "linear.weight": ramp(3, 4),
        "linear.bias": ramp(3, start=2.0),
        "mask": torch.triu(torch.ones(4, 4), diagonal=1),
        "count": torch.tensor(7),
    }


class Model(nn.Module):
    """A module whose state dict is weights()."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mask", torch.empty(4, 4))
        self.register_buffer("count", torch.tensor(0))
        self.load_state_dict(weights())

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.mask @ x) * self.count


class Outer(nn.Module):
    """Model below a prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4, bias=False)
        self.embed.weight.data = ramp(4, 4, start=0.5)
        self.blocks = nn.ModuleList(Model() for _ in range(2))
        self.blocks[1].linear.weight.data += 1

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.blocks[0](x) + self.blocks[1](x)


NUMBERS = [0.0, -0.0, 1.0, -1.5, 0.25, 3.0]


def every_dtype() -> Tensors:
    """Numbers of every dtype, with the ends of its range."""
    tensors = {"bool": torch.tensor([True, False, True])}
    for dtype in (
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    ):
        limits = torch.iinfo(dtype)
        tensors[name_of(dtype)] = torch.tensor(
            [limits.min, 0, 1, 2, 100, limits.max], dtype=dtype
        )
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    ):
        limits = torch.finfo(dtype)
        ends = [limits.min, limits.max, limits.tiny]
        tensors[name_of(dtype)] = torch.tensor(
            NUMBERS + ends, dtype=torch.float64
        ).to(dtype)
    tensors["float8_e8m0fnu"] = torch.tensor([0.25, 1.0, 2.0**100]).to(
        torch.float8_e8m0fnu
    )
    pairs = torch.tensor(NUMBERS, dtype=torch.float64).view(3, 2)
    for dtype in (torch.complex32, torch.complex64, torch.complex128):
        tensors[name_of(dtype)] = torch.view_as_complex(pairs).to(dtype)
    return tensors


def bit_dtypes() -> Tensors:
    """Dtypes that hold bits and have no numbers."""
    dtypes = (
        torch.float4_e2m1fn_x2,
        torch.bits8,
        torch.bits16,
        torch.bits1x8,
        torch.bits2x4,
        torch.bits4x2,
    )
    data = torch.tensor([0x01, 0x23, 0x45, 0x67, 0x89, 0xAB], dtype=torch.uint8)
    return {name_of(dtype): data.clone().view(dtype) for dtype in dtypes}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- What is expected ------------------------------------------------------


def describe(tensor: Tensor) -> dict[str, Any]:
    """An entry of expected.json."""
    entry = {"dtype": name_of(tensor.dtype), "shape": list(tensor.shape)}
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    if entry["dtype"] in bit_dtypes():
        return {**entry, "bytes": tensor.view(torch.uint8).tolist()}
    if tensor.is_complex():
        # complex32 has few functions.
        parts = tensor.view(torch.uint8).view(tensor.dtype.to_real()).double()
        return {**entry, "values": parts.view(-1, 2).tolist()}
    if tensor.is_floating_point():
        tensor = tensor.double()
    return {**entry, "values": tensor.tolist()}


def describe_all(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {key: describe(tensor) for key, tensor in tensors.items()}


REFUSED = {"error": True}


# --- Files of torch.save ---------------------------------------------------


def saved(value: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def views() -> Tensors:
    """Tensors that share a storage, or lie in one with gaps."""
    base = ramp(6, 8)
    return {
        "transposed": base.t(),
        "permuted": ramp(2, 3, 4).permute(2, 0, 1),
        "sliced": base[1:5:2, 2:7:3],
        "row": base[3],
        "column": base[:, 5],
        "expanded": ramp(3, 1).expand(3, 4),
        "zero_strides": torch.tensor(1.5).expand(2, 3),
        "last": base[5, 7],
        "overlapping": ramp(5).as_strided((3, 3), (1, 1)),
    }


def tied() -> Tensors:
    weight = ramp(5, 4)
    return {
        "embed.weight": weight,
        "norm.weight": ramp(4),
        "head.weight": weight,
        "half": weight[2:],
    }


def conjugates() -> Tensors:
    """Views whose bits say that their values are conjugate or negative."""
    z = torch.view_as_complex(ramp(3, 2, 2))
    return {
        "plain": z,
        "conjugate": z.conj(),
        "negative": z.clone().conj().imag,
        "both": z.t().conj(),
    }


def shapes() -> Tensors:
    return {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0),
        "empty_rows": torch.empty(0, 3),
        "empty_columns": torch.empty(2, 0, 3, dtype=torch.int64),
        "many": ramp(1, 2, 1, 2, 1, 2, 1),
    }


def parameters() -> Tensors:
    """Parameters, as from dict(module.named_parameters())."""
    marked = nn.Parameter(ramp(2))
    marked.note = "an attribute"
    return {
        "linear.weight": nn.Parameter(ramp(3, 4)),
        "linear.bias": nn.Parameter(ramp(3, start=2.0), requires_grad=False),
        "marked": marked,
        "count": nn.Buffer(torch.tensor(7)),
        "leaf": ramp(2).requires_grad_(),
    }


def odd_keys() -> Tensors:
    return {
        "": ramp(1),
        "with space": ramp(1, start=1.0),
        "Größe.\u6ce8\u610f.\U0001f600": ramp(1, start=2.0),
        'quote".back\\slash': ramp(1, start=3.0),
        "long." + "x" * 300: ramp(1, start=4.0),
    }


def training_state() -> dict[str, Any]:
    """What a training loop saves, all of it safe for weights_only=True."""
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


def on_cuda() -> bytes:
    """As saved on the second GPU of a machine."""
    with mock.patch("torch.serialization.location_tag", lambda _: "cuda:1"):
        return saved(weights())


def rewritten(
    archive: bytes,
    change: Callable[[str, bytes], bytes | None],
) -> bytes:
    """An archive whose records are changed, or dropped, by a function.

    It is written by LibTorch's writer: uncompressed, aligned, with CRC.
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


def big_endian() -> bytes:
    """As saved on a machine of the other byte order; all float32."""
    state = {"weight": ramp(3, 4), "bias": ramp(3)}

    def swap(name: str, data: bytes) -> bytes:
        if name == "byteorder":
            return b"big"
        if name.startswith("data/"):
            return np.frombuffer(data, np.float32).byteswap().tobytes()
        return data

    return rewritten(saved(state), swap)


def without_byteorder() -> bytes:
    """As releases before 2.1 wrote it."""
    extra = {"byteorder", ".format_version", ".storage_alignment"}
    return rewritten(
        saved(weights()), lambda name, data: None if name in extra else data
    )


def zipped(archive: bytes, compression: int) -> bytes:
    """Unpacked and packed again by another program."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(archive)) as old,
        zipfile.ZipFile(buffer, "w", compression) as new,
    ):
        for record in old.namelist():
            # A ZipInfo of its own has a fixed date.
            info = zipfile.ZipInfo(record)
            info.compress_type = compression
            new.writestr(info, old.read(record))
    return buffer.getvalue()


# --- Files to be refused ---------------------------------------------------


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


LFS_POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    f"oid sha256:{'4d' * 32}\n"
    "size 548105171\n"
)


# --- TorchScript -----------------------------------------------------------


class Packed(nn.Module):
    """Has a state of its own, which only its code can read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = ramp(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight

    @torch.jit.export
    def __getstate__(self) -> tuple[Tensor, bool]:
        return self.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[Tensor, bool]) -> None:
        self.weight = state[0]
        self.training = state[1]


class WithPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.linear.weight.data = ramp(2, 2)
        self.linear.bias.data = ramp(2)
        self.packed = Packed()

    def forward(self, x: Tensor) -> Tensor:
        return self.packed(self.linear(x))


class Attributes(nn.Module):
    """Attributes of many types; the tensors among them are its state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(ramp(2, 3))
        self.frozen = nn.Parameter(ramp(2), requires_grad=False)
        self.register_buffer("kept", ramp(3))
        self.register_buffer("dropped", ramp(2, 2), persistent=False)
        self.plain = ramp(4)
        attribute = torch.jit.Attribute
        self.maybe = attribute(ramp(1), Optional[Tensor])  # noqa: UP045
        self.none = attribute(None, Optional[Tensor])  # noqa: UP045
        self.table = attribute({"x": ramp(2)}, dict[str, Tensor])
        self.tensors = attribute([ramp(2), ramp(3)], list[Tensor])
        self.numbers = attribute([1, 2, 3], list[int])
        self.pair = attribute((1, "one"), tuple[int, str])
        self.text = "text"
        self.rate = 0.5

    def forward(self, x: Tensor) -> Tensor:
        maybe = self.maybe
        if maybe is not None and self.none is None:
            x = x + maybe * self.rate + self.numbers[0] + self.pair[0]
        x = x + self.tensors[0].sum() + self.table["x"].sum() + len(self.text)
        x = x + self.kept.sum() + self.dropped.sum() + self.plain.sum()
        return x @ self.weight + self.frozen.sum()


class Tied(nn.Module):
    """Two names of one parameter, and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.embed.weight.data = ramp(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("view", self.embed.weight.data.t()[1:3])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + self.view.sum()


def archived(module: torch.jit.ScriptModule) -> bytes:
    """Without the records that hold file names of the exporting machine."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return rewritten(
        buffer.getvalue(),
        lambda name, data: None if name.endswith(".debug_pkl") else data,
    )


def traced(module: nn.Module, *shape: int) -> torch.jit.ScriptModule:
    return torch.jit.trace(module.eval(), (torch.ones(*shape),))


def scripted_dtypes() -> torch.jit.ScriptModule:
    module = nn.Module()
    for name, tensor in every_dtype().items():
        module.register_buffer(f"buffer_{name}", tensor)
    return torch.jit.script(module)


# --- torch.export ----------------------------------------------------------


class Exported(nn.Module):
    """All places where an exported program keeps a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.linear.weight.data = ramp(3, 4)
        self.linear.bias.data = ramp(3, start=2.0)
        self.tied = nn.Linear(4, 3, bias=False)
        self.tied.weight = self.linear.weight
        self.register_buffer("mask", torch.triu(torch.ones(4, 4), diagonal=1))
        self.register_buffer("cache", ramp(4), persistent=False)
        self.register_buffer("transposed", ramp(3, 4).t())
        self.register_buffer("brief", ramp(4, 4).bfloat16())
        self.register_buffer("count", torch.tensor(7))
        self.constant = ramp(4, start=3.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mask @ x + self.brief.float()
        x = x + self.cache + self.constant + self.transposed.sum()
        return self.linear(x) + self.tied(x) * self.count


def exported_program() -> torch.export.ExportedProgram:
    program = torch.export.export(Exported().eval(), (torch.ones(4, 4),))
    for module in program.graph_module.modules():
        for node in module.graph.nodes:  # file names of this machine
            for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
                node.meta.pop(key, None)
    return program


def exported() -> bytes:
    buffer = io.BytesIO()
    torch.export.save(exported_program(), buffer)
    return buffer.getvalue()


def exported_by_2_8() -> bytes:
    """As torch.export.save of 2.8 wrote it: the weights as one record."""
    artifact = serialize(exported_program())
    buffer = io.BytesIO()
    with PT2ArchiveWriter(buffer) as archive:
        archive.write_bytes("data/weights/model.pt", artifact.state_dict)
        archive.write_bytes("data/constants/model.pt", artifact.constants)
        archive.write_bytes(
            "data/sample_inputs/model.pt", artifact.example_inputs
        )
        archive.write_bytes("models/model.json", artifact.exported_program)
    return buffer.getvalue()


def exported_until_2_7() -> bytes:
    """As torch.export.save wrote it until 2.7."""
    artifact = serialize(exported_program())
    records = {
        "serialized_exported_program.json": artifact.exported_program,
        "serialized_state_dict.pt": artifact.state_dict,
        "serialized_constants.pt": artifact.constants,
        "serialized_example_inputs.pt": artifact.example_inputs,
        "version": ".".join(map(str, SCHEMA_VERSION)),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in records.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


# --- safetensors -----------------------------------------------------------


def safetensors_bytes(
    tensors: Tensors, metadata: dict[str, str] | None = None, crc: bool = False
) -> bytes:
    """By our writer, and compared with the safetensors package's."""
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder, "ours")
        safetensors_file.write(ours, tensors, metadata, crc)
        data = ours.read_bytes()
        # With several entries the package has their order by chance.
        if save_file and not crc and len(metadata or {}) < 2:
            theirs = Path(folder, "theirs")
            save_file(tensors, theirs, metadata)
            if theirs.read_bytes() != data:
                raise ExportError("the safetensors package writes other bytes")
    return data


def safetensors_dtypes() -> Tensors:
    stored = safetensors_file.NAMES
    return {k: t for k, t in every_dtype().items() if t.dtype in stored}


SHARDS = {
    "model-00001-of-00002.safetensors": ("linear.weight", "count"),
    "model-00002-of-00002.safetensors": ("linear.bias", "mask"),
}
INDEX = "sharded/model.safetensors.index.json"


def shards() -> dict[str, bytes]:
    """An index and the files that it names."""
    state = weights()
    size = sum(t.nbytes for t in state.values())
    index = {
        "metadata": {"total_size": size},
        "weight_map": {
            key: shard for shard, keys in SHARDS.items() for key in keys
        },
    }
    files = {INDEX: (json.dumps(index, indent=2) + "\n").encode()}
    for shard, keys in SHARDS.items():
        tensors = {key: state[key] for key in keys}
        files[f"sharded/{shard}"] = safetensors_bytes(tensors, {"format": "pt"})
    return files


# --- All files -------------------------------------------------------------


def torch_files() -> Iterator[tuple[str, bytes, Mapping[str, Tensor] | None]]:
    """Name, content and tensors of each file of torch.save."""
    state = weights()
    for protocol in (2, 3, 4, 5):
        yield (
            f"protocol{protocol}.pt",
            saved(state, pickle_protocol=protocol),
            state,
        )
    yield "ordered-dict.pt", saved(Model().state_dict()), state
    yield "dict.pt", saved(state), state
    yield "state-dict-key.pt", saved(training_state()), state
    yield "model-key.pt", saved({"epoch": 1, "model": state}), state
    yield "namespace.pt", saved(namespace()), state
    yield "numpy-values.pt", saved(numpy_values()), state
    yield "random-states.pt", saved(python_random_state()), state
    for name, tensors in (
        ("views", views()),
        ("tied", tied()),
        ("conjugates", conjugates()),
        ("shapes", shapes()),
        ("parameters", parameters()),
        ("odd-keys", odd_keys()),
        ("dtypes", every_dtype()),
        ("dtypes-bits", bit_dtypes()),
    ):
        yield f"{name}.pt", saved(tensors), tensors
    yield "views-protocol5.pt", saved(views(), pickle_protocol=5), views()
    yield (
        "dtypes-protocol4.pt",
        saved(every_dtype(), pickle_protocol=4),
        every_dtype(),
    )
    yield "cuda.pt", on_cuda(), state
    yield (
        "big-endian.pt",
        big_endian(),
        {
            "weight": ramp(3, 4),
            "bias": ramp(3),
        },
    )
    yield "without-byteorder.pt", without_byteorder(), state
    yield "rezipped.pt", zipped(saved(state), zipfile.ZIP_STORED), state
    yield "deflated.pt", zipped(saved(state), zipfile.ZIP_DEFLATED), state
    yield "empty-dict.pt", saved({}), {}


def refused_files() -> Iterator[tuple[str, bytes, None]]:
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
        yield name, data, None


def scripted_files() -> Iterator[
    tuple[str, bytes, Mapping[str, Tensor] | None]
]:
    modules = {
        "traced": traced(Model(), 4, 4),
        "scripted": torch.jit.script(Model()),
        "traced-model": traced(Outer(), 4, 4),
        "scripted-model": torch.jit.script(Outer().eval()),
        "scripted-attributes": torch.jit.script(Attributes()),
        "scripted-tied": torch.jit.script(Tied()),
        "scripted-dtypes": scripted_dtypes(),
    }
    for name, module in modules.items():
        yield f"{name}.pt", archived(module), module.state_dict()
    # What keeps a state of its own is closed to a reader that runs no code,
    # and a frozen module has its weights among the constants of its code.
    closed = {
        "scripted-setstate": torch.jit.script(Packed()),
        "scripted-setstate-child": torch.jit.script(WithPacked()),
        "scripted-frozen": torch.jit.freeze(torch.jit.script(Model().eval())),
    }
    for name, module in closed.items():
        yield f"{name}.pt", archived(module), None


def exported_files() -> Iterator[tuple[str, bytes, Mapping[str, Tensor]]]:
    state = Exported().state_dict()
    yield "exported.pt2", exported(), state
    yield "exported-2.8.pt2", exported_by_2_8(), state
    yield "exported-until-2.7.pt2", exported_until_2_7(), state


def safetensors_files() -> Iterator[tuple[str, bytes, Tensors]]:
    state = weights()
    yield "plain.safetensors", safetensors_bytes(state), state
    yield (
        "metadata.safetensors",
        safetensors_bytes(state, {"format": "pt"}),
        state,
    )
    yield (
        "checksums.safetensors",
        safetensors_bytes(state, {"format": "pt"}, crc=True),
        state,
    )
    yield "shapes.safetensors", safetensors_bytes(shapes()), shapes()
    yield "odd-keys.safetensors", safetensors_bytes(odd_keys()), odd_keys()
    yield (
        "dtypes.safetensors",
        safetensors_bytes(safetensors_dtypes()),
        safetensors_dtypes(),
    )
    yield "empty.safetensors", safetensors_bytes({}), {}
    yield INDEX, shards()[INDEX], state
    for shard, keys in SHARDS.items():
        name = f"sharded/{shard}"
        yield name, shards()[name], {key: state[key] for key in keys}


def all_files() -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Name, content and expectation of each file."""
    for name, data, tensors in itertools.chain(
        torch_files(),
        refused_files(),
        scripted_files(),
        exported_files(),
        safetensors_files(),
    ):
        expected = REFUSED if tensors is None else describe_all(tensors)
        yield name, data, expected


def write(folder: Path) -> None:
    """Writes all files and what is expected of them."""
    expected = {}
    count = size = 0
    for name, data, entry in all_files():
        if len(data) > MAXIMUM_SIZE:
            raise ExportError(f"{name} has {len(data)} bytes")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        count += 1
        size += len(data)
        expected[name] = entry
    (folder / EXPECTED).write_text(as_json(expected), encoding="utf-8")
    print(f"{count} files, {size / 1024:.0f} KiB")


def as_json(expected: dict[str, Any]) -> str:
    """One line for each tensor."""
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


# --- What Python reads -----------------------------------------------------

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

# The entry of a training state that is the state dict.
NESTED = ("state_dict", "model", "model_state_dict")


def read(path: Path) -> Tensors:
    """The tensors of a file as Python's own readers give them."""
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
    keys = [key for key in NESTED if key in value]
    return value[keys[0]] if keys else value


def is_harmless(path: Path) -> bool:
    """Whether Python, too, runs nothing that a malicious file names."""
    if not path.name.startswith("malicious"):
        return True
    try:
        torch.load(path, weights_only=True)
    except pickle.UnpicklingError:
        return True
    return False


def check(folder: Path) -> int:
    """Reads a folder by Python, and compares it with the files made anew."""
    if not folder.is_dir():
        raise ExportError(f"{folder}: no such folder")
    text = (folder / EXPECTED).read_text(encoding="utf-8")
    committed = json.loads(text)
    wanted = {name: entry for name, _, entry in all_files()}
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != EXPECTED
    }
    names = sorted(found | set(committed) | set(wanted))
    failures = 0
    for name in names:
        problem = difference(
            folder / name, committed.get(name), wanted.get(name)
        )
        failures += bool(problem)
        print(f"FAIL {name}: {problem}" if problem else f"ok   {name}")
    print(f"{len(names) - failures} of {len(names)} files agree")
    return 1 if failures else 0


def difference(
    path: Path, committed: dict[str, Any] | None, wanted: dict[str, Any] | None
) -> str:
    """What is wrong with a file, or nothing."""
    if wanted is None:
        return "is not one of the files"
    if not path.is_file():
        return "is missing"
    if as_text(committed) != as_text(wanted):
        return f"{EXPECTED} differs from what is made anew"
    if wanted == REFUSED:
        return "" if is_harmless(path) else "is not refused"
    try:
        tensors = describe_all(read(path))
    except Exception as error:  # a broken file can raise nearly anything
        return f"cannot be read: {first_line(error)}"
    if tensors.keys() != wanted.keys():
        return "has other keys"
    differ = [k for k, t in tensors.items() if as_text(t) != as_text(wanted[k])]
    return f"differs in {', '.join(differ)}" if differ else ""


def as_text(entry: Any) -> str:
    """For comparing: 0.0 and -0.0, 1 and 1.0 differ as text."""
    return json.dumps(entry)


# --- Command line ----------------------------------------------------------


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write small weight files of every format."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("write", help="the committed files")
    command.add_argument("folder", type=Path, metavar="OUT")
    command = commands.add_parser(
        "check", help="read a folder back, compare with the files made anew"
    )
    command.add_argument("folder", type=Path, metavar="DIR")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    # Deprecations of TorchScript and quantization, experimental dtypes, tied
    # weights of torch.export.
    warnings.simplefilter("ignore")
    logging.getLogger("torch.export").setLevel(logging.ERROR)
    try:
        if options.command == "write":
            write(options.folder)
        else:
            return check(options.folder)
    except (ExportError, OSError, UnicodeError) as error:
        print(f"export_files.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
