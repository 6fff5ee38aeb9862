"""Differences between the values of two files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Returns nested dicts and lists as one dict of dotted names."""
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        return {prefix: value}
    return {
        name: leaf
        for key, child in items
        for name, leaf in flatten(
            child, f"{prefix}.{key}" if prefix else str(key)
        ).items()
    }


def difference(
    ours: Mapping[str, Any],
    wanted: Mapping[str, Any],
    tolerances: Mapping[torch.dtype, tuple[float, float]],
    skip_values: Callable[[str], bool] = lambda name: False,
) -> str:
    """Says how two flat dicts differ, or nothing.

    Tensors may differ by the tolerances of their dtype, (rtol, atol), or in
    any way where `skip_values` says so; dtypes without tolerances must agree.
    """
    if list(ours) != list(wanted):
        names = sorted(set(ours) ^ set(wanted)) or ["their order"]
        return f"names differ: {', '.join(names)}"
    problems = []
    for name, value in wanted.items():
        if isinstance(ours[name], Tensor) and isinstance(value, Tensor):
            rtol, atol = tolerances.get(value.dtype, (0.0, 0.0))
            problem = tensor_difference(
                ours[name], value, rtol, atol, skip_values(name)
            )
        elif type(ours[name]) is type(value) and ours[name] == value:
            problem = ""
        else:
            problem = f"expected {value!r} but got {ours[name]!r}"
        if problem:
            problems.append(f"{name}: {problem}")
    return "\n     ".join(problems)


def tensor_difference(
    ours: Tensor, wanted: Tensor, rtol: float, atol: float, skip_values: bool
) -> str:
    kinds = [(t.dtype, tuple(t.shape)) for t in (ours, wanted)]
    if kinds[0] != kinds[1]:
        return f"expected {kinds[1]} but got {kinds[0]}"
    if skip_values:
        return ""
    try:
        torch.testing.assert_close(ours, wanted, rtol=rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""
