#!/usr/bin/env python3
"""Measures block masks against FlexAttention and dense masks, interleaved.

Packed documents with causal attention: ours is the operator torch_attention::attention
with block_mask. The others are torch.compile(flex_attention), which needs a C++ compiler
and has no backward pass on the CPU, and LibTorch's SDPA with a bool mask (T, T).
Outputs are compared first. The masks are made before, and what that takes is printed;
so is the time of the check of a block mask in each call.

    python benchmarks/flex_attention.py build/release/lib
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from harness.agreement import difference, results_of
from harness.machine import describe_machine
from harness.measure import Effort, interleave, ratio, spread, timer
from harness.report import ratio_text, time_text

HEADS = 8
HEAD_DIM = 64
DOCUMENTS = 64
EFFORT = Effort(20, 5, 25)
# The part of the largest element by which outputs may differ.
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def timed(name: str, run: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = run()
    print(f"  {name + ', once':32}{time_text(time.perf_counter() - start):>12}")
    return result


class Masks:
    """Packed documents of random lengths, T tokens in all, as masks of three forms."""

    def __init__(self, T: int) -> None:
        torch.manual_seed(0)
        ends = torch.randperm(T - 1)[: DOCUMENTS - 1].sort()[0] + 1
        ids = torch.bucketize(torch.arange(T), ends, right=True)

        def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k <= q) & (ids[q] == ids[k])

        print(f"masks of {T} tokens")
        make = torch.ops.torch_attention.block_mask
        self.ours = timed("ours", lambda: make("causal documents 0 none and", [ids], T, T))
        self.theirs = timed(
            "create_block_mask",
            lambda: create_block_mask(mask_mod, None, None, T, T, device="cpu"),
        )
        self.dense = (ids[:, None] == ids) & torch.ones(T, T, dtype=torch.bool).tril()
        check = timer(lambda: torch.ops.torch_attention.block_mask_sizes(self.ours))
        check(100)
        print(f"  {'check of ours, in each call':32}{time_text(check(1000) / 1000):>12}")


def compare(name: str, ways: dict[str, Callable[[], Any]], allowed: float) -> bool:
    """Prints the times of `ways`, ours first. Returns whether their results agree."""
    print(name)
    expected = results_of(ways["ours"])
    for way, run in ways.items():
        distance = difference(results_of(run), expected)
        if not distance <= allowed:
            print(f"  no figures: {way} differs from ours by {distance:.1e}")
            return False
        if way != "ours":
            print(f"  {way} differs from ours by {distance:.1e} of the largest element")
    seconds = interleave([timer(run) for run in ways.values()], EFFORT)
    for way, taken in zip(ways, seconds, strict=True):
        text = time_text(spread(taken)["median"])
        print(f"  {way:32}{text:>12}  {ratio_text(ratio(taken, seconds[0]))}", flush=True)
    return True


def with_gradients(run: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], Any]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    return lambda: torch.autograd.grad(run(*leaves).sum(), leaves)


def measure(T: int, dtype: torch.dtype, masks: Masks, *, backward: bool) -> bool:
    inputs = [torch.randn(1, HEADS, T, HEAD_DIM).to(dtype) for _ in range(3)]
    compiled = torch.compile(flex_attention)

    def ours(*x: Tensor) -> Tensor:
        return torch.ops.torch_attention.attention(*x, block_mask=masks.ours)

    def sdpa(*x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*x, attn_mask=masks.dense)

    sizes = f"B1 H{HEADS} T{T} D{HEAD_DIM}, {str(dtype)[6:]}"
    forward = compare(
        f"forward: {sizes}",
        {
            "ours": lambda: ours(*inputs),
            "flex_attention, compiled": lambda: compiled(*inputs, block_mask=masks.theirs),
            "SDPA, dense mask": lambda: sdpa(*inputs),
        },
        ALLOWED[dtype],
    )
    if not (forward and backward):
        return forward
    return compare(
        f"forward and backward: {sizes}",
        {"ours": with_gradients(ours, inputs), "SDPA, dense mask": with_gradients(sdpa, inputs)},
        ALLOWED[dtype],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path, help="folder of the library")
    parser.add_argument("--threads", type=int, help="default: PyTorch's number")
    parser.add_argument("--forward", action="store_true", help="no backward passes")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384])
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    torch.ops.load_library(options.library / "libtorch_attention.so")
    print(describe_machine())
    agree = True
    for T in options.tokens:
        masks = Masks(T)
        for dtype in ALLOWED:
            agree &= measure(T, dtype, masks, backward=not options.forward)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
