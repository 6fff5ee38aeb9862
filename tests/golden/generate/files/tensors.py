"""The tensors that the weight files hold, and their form in expected.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..golden_set import Unavailable
from ..script_class import of_a_script

Tensors = dict[str, Tensor]


def ramp(*shape: int, start: float = -1.0, step: float = 0.25) -> Tensor:
    """Returns different numbers that every float dtype holds exactly."""
    count = torch.Size(shape).numel()
    return (start + step * torch.arange(count)).reshape(shape)


def weights() -> Tensors:
    """Returns the same few tensors for most files."""
    return {
        "linear.weight": ramp(3, 4),
        "linear.bias": ramp(3, start=2.0),
        "mask": torch.triu(torch.ones(4, 4), diagonal=1),
        "count": torch.tensor(7),
    }


@of_a_script
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


# --- Dtypes ----------------------------------------------------------------

INTEGERS = (
    *("uint8", "int8", "int16", "int32", "int64"),
    *("uint16", "uint32", "uint64"),
)
FLOATS = (
    *("float16", "bfloat16", "float32", "float64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
)
COMPLEX = ("complex32", "complex64", "complex128")
# These hold bits and have no numbers.
BITS = (
    "float4_e2m1fn_x2",
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
)

NUMBERS = [0.0, -0.0, 1.0, -1.5, 0.25, 3.0]


def dtype_of(name: str) -> torch.dtype:
    """Returns a dtype by its name; older releases lack some."""
    dtype = getattr(torch, name, None)
    if dtype is None:
        raise Unavailable(f"torch {torch.__version__} has no {name}")
    return dtype


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def every_dtype() -> Tensors:
    """Returns numbers of every dtype, with the ends of its range."""
    tensors = {"bool": torch.tensor([True, False, True])}
    for name in INTEGERS:
        dtype = dtype_of(name)
        ends = torch.iinfo(dtype)
        values = [ends.min, 0, 1, 2, 100, ends.max]
        tensors[name] = torch.tensor(values, dtype=dtype)
    for name in FLOATS:
        dtype = dtype_of(name)
        limits = torch.finfo(dtype)
        values = [*NUMBERS, limits.min, limits.max, limits.tiny]
        tensors[name] = torch.tensor(values, dtype=torch.float64).to(dtype)
    powers = torch.tensor([0.25, 1.0, 2.0**100])
    tensors["float8_e8m0fnu"] = powers.to(dtype_of("float8_e8m0fnu"))
    pairs = torch.tensor(NUMBERS, dtype=torch.float64).view(3, 2)
    for name in COMPLEX:
        tensors[name] = torch.view_as_complex(pairs).to(dtype_of(name))
    return tensors


def bit_dtypes() -> Tensors:
    data = torch.tensor([0x01, 0x23, 0x45, 0x67, 0x89, 0xAB], dtype=torch.uint8)
    return {name: data.clone().view(dtype_of(name)) for name in BITS}


# --- Odd tensors and keys --------------------------------------------------


def views() -> Tensors:
    """Returns tensors that share a storage, or lie in one with gaps."""
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
    """Returns views whose bits say that values are conjugate or negative."""
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
    """Returns parameters, as dict(module.named_parameters()) has them."""
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


# --- expected.json ---------------------------------------------------------


def describe(tensor: Tensor) -> dict[str, Any]:
    """Returns dtype, shape and values, or bytes, as JSON has them."""
    entry = {"dtype": name_of(tensor.dtype), "shape": list(tensor.shape)}
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    if entry["dtype"] in BITS:
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
