#!/usr/bin/env python3
"""Measures attention of packed sequences against Python's ways, interleaved.

Ours is the operator torch_attention::attention with cu_seqlens. The others are
LibTorch's SDPA: sequence by sequence, of a padded batch with a mask (padding
and unpadding are part of it), and of nested tensors. Outputs are compared first.

    python benchmarks/packed.py build/release/lib
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.agreement import difference
from harness.measure import Effort, interleave, ratio, spread, timer
from harness.report import ratio_text, time_text

HEADS = 12
HEAD_DIM = 64
EFFORT = Effort(10, 5, 15)
# The part of the largest element by which outputs may differ.
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Case:
    name: str
    lengths: list[int]
    causal: bool = False


# As uneven as sentences and texts are: no length twice in a row.
CASES = [
    Case("64 sentences of 4 to 60", [4 + 23 * i % 57 for i in range(64)]),
    Case("16 texts of 32 to 672", [32 + 640 * i // 15 for i in range(16)]),
    Case(
        "16 texts of 32 to 672, causal",
        [32 + 640 * i // 15 for i in range(16)],
        causal=True,
    ),
    Case("one of 4096 and 40 of 100, causal", [4096] + [100] * 40, causal=True),
]


class Packed:
    """Inputs (1, H, N, D) of one case, and the ways to compute it."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.causal = case.causal
        lengths = torch.tensor(case.lengths)
        self.longest = int(lengths.max())
        self.starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        total = int(lengths.sum())
        self.inputs = [
            torch.randn(1, total, HEADS, HEAD_DIM, dtype=dtype).transpose(1, 2)
            for _ in range(3)
        ]
        self.real = torch.arange(self.longest) < lengths[:, None]
        self.attends = self.real[:, None, None, :]
        if case.causal:
            square = torch.ones(self.longest, self.longest, dtype=torch.bool)
            self.attends = self.attends & square.tril()

    def ours(self) -> Tensor:
        return torch.ops.torch_attention.attention(
            *self.inputs, causal=self.causal, cu_seqlens=self.starts
        )

    def one_by_one(self) -> Tensor:
        spans = list(zip(self.starts[:-1], self.starts[1:], strict=True))
        return torch.cat(
            [
                F.scaled_dot_product_attention(
                    *(x[:, :, begin:end] for x in self.inputs),
                    is_causal=self.causal,
                )
                for begin, end in spans
            ],
            dim=2,
        )

    def padded(self) -> Tensor:
        def pad(x: Tensor) -> Tensor:
            y = x.new_zeros(len(self.real), self.longest, HEADS, HEAD_DIM)
            y[self.real] = x[0].transpose(0, 1)
            return y.transpose(1, 2)

        output = F.scaled_dot_product_attention(
            *map(pad, self.inputs), attn_mask=self.attends
        )
        return output.transpose(1, 2)[self.real].transpose(0, 1)[None]

    def nested(self) -> Tensor:
        def nest(x: Tensor) -> Tensor:
            tokens = x[0].transpose(0, 1)
            jagged = torch.nested.nested_tensor_from_jagged(tokens, self.starts)
            return jagged.transpose(1, 2)

        output = F.scaled_dot_product_attention(
            *map(nest, self.inputs), is_causal=self.causal
        )
        return output.transpose(1, 2).values().transpose(0, 1)[None]


def measure(case: Case, dtype: torch.dtype) -> bool:
    """Prints the times of a case. Returns whether all outputs agree."""
    packed = Packed(case, dtype)
    ways = {
        "ours": packed.ours,
        "SDPA, one by one": packed.one_by_one,
        "SDPA, padded": packed.padded,
        "SDPA, nested tensors": packed.nested,
    }
    print(f"{case.name}, {HEADS} heads of {HEAD_DIM}, {str(dtype)[6:]}")
    expected = packed.ours()
    for name, run in list(ways.items()):
        try:
            distance = difference([run()], [expected])
        except RuntimeError as error:
            print(f"  {name}: cannot run here: {str(error).splitlines()[0]}")
            del ways[name]
            continue
        if not distance <= ALLOWED[dtype]:
            print(f"  no figures: {name} differs from ours by {distance:.1e}")
            return False
    seconds = interleave([timer(run) for run in ways.values()], EFFORT)
    for name, taken in zip(ways, seconds, strict=True):
        text = time_text(spread(taken)["median"])
        print(f"  {name:24}{text:>12}  {ratio_text(ratio(taken, seconds[0]))}", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path, help="folder of the library")
    parser.add_argument("--threads", type=int, help="default: PyTorch's number")
    parser.add_argument("--only", default="", help="only cases with this text")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", message=".*nested.*")
    torch.ops.load_library(options.library / "libtorch_attention.so")
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    agree = True
    for dtype in ALLOWED:
        for case in CASES:
            if options.only in case.name:
                agree &= measure(case, dtype)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
