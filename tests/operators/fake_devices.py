"""Our operators on fake CUDA tensors, as compilers trace them without a device.

    python fake_devices.py LIBRARY

LIBRARY is libtorch_attention.so. Shapes, strides, dtypes and devices of outputs and
gradients are those of the same call on the CPU, whose tensors are not fake.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

torch.ops.load_library(sys.argv[1])
ops = torch.ops.torch_attention

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
RULES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "window": 3},
    {"window": 3, "window_after": 2},
    {"causal": True, "chunk": 4},
    {"causal": True, "softcap": 2.0, "scale": 0.3},
    {"causal": True, "alibi_slopes": SLOPES},
    {"causal": True, "sinks": SLOPES},
    {"mask": torch.zeros(2, 1, 1, 9, dtype=torch.bool)},
    {"block_mask": torch.ops.torch_attention.block_mask(
        "causal", [], 7, 9, query_offsets=torch.tensor([2]))},
    {"bias": torch.zeros(4, 7, 9)},
    {"key_lengths": torch.tensor([9, 4])},
]


def described(tensors: list[Tensor | None], device: str) -> list[Any]:
    for x in tensors:
        if x is not None and x.device.type != device:
            raise AssertionError(f"expected a result on {device}, but got {x.device}")
    return [None if x is None else (x.shape, x.stride(), x.dtype) for x in tensors]


def inputs(heads: int, dtype: torch.dtype) -> list[Tensor]:
    sizes = [(2, 4, 7, 16), (2, heads, 9, 16), (2, heads, 9, 16)]
    return [torch.zeros(size, dtype=dtype) for size in sizes]


def attend(tensors: list[Tensor], rule: dict[str, Any], move: Any) -> list[Tensor | None]:
    moved = [move(x) for x in tensors]
    options = {k: move(x) if isinstance(x, Tensor) else x for k, x in rule.items()}
    options["enable_gqa"] = True
    # Autograd itself asks for a device that is there, so that its steps are called.
    output, *results = ops._attention_forward(*moved, **options)
    wanted = [True] * 3 + [False] * 3
    gradients = ops._attention_backward(
        torch.zeros_like(output), output, *results, wanted, *moved, **options
    )
    return [ops.attention(*moved, **options), output, *gradients]


def decode(tensors: list[Tensor], move: Any) -> list[Tensor]:
    query, keys, values = (move(x) for x in tensors)
    new = keys[:, :, :7]
    output = ops.decode(
        query, new.clone(), new.clone(), keys, values, move(torch.tensor([0, 2]))
    )
    return [output]


def main() -> int:
    cases = 0
    for heads, dtype in itertools.product((4, 2), (torch.float32, torch.bfloat16, torch.float16)):
        tensors = inputs(heads, dtype)
        calls = [lambda x, move, rule=rule: attend(x, rule, move) for rule in RULES]
        for call in [*calls, decode]:
            expected = described(call(tensors, lambda x: x.clone()), "cpu")
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:

                def fake(x: Tensor) -> Tensor:
                    return mode.from_tensor(x).to("cuda")

                found = described(call(tensors, fake), "cuda")
            if found != expected:
                raise AssertionError(f"expected {expected}, but got {found}")
            cases += 1
    print(f"{cases} calls have the same results on fake CUDA tensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
