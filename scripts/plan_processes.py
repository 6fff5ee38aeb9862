#!/usr/bin/env python3
"""Prints what the schemes of docs/distributed.md send and hold, by their formulas.

    python scripts/plan_processes.py --processes 8 64 1024 --tokens 131072 1000000

One attention layer, forward, of one causal sequence. Times are those of a link and
a device that do what the options say, and nothing else: a plan, not a measurement.
Sending by the ring is hidden behind computing; the others' is added.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass
class Layer:
    size: int  # of a token, C
    heads: int  # H
    key_heads: int  # G
    head_dim: int  # D
    number: int  # bytes of a number, b

    def flops(self, tokens: int) -> float:
        """Of projections, and of causal scores and context."""
        width = self.heads * self.head_dim
        keys = self.key_heads * self.head_dim
        projections = 2 * tokens * self.size * (2 * width + 2 * keys)
        return projections + 2 * tokens**2 * width


@dataclass
class Plan:
    name: str
    sent: float  # bytes, of one process
    held: float  # bytes of inputs, queries, keys, values, context, output
    hidden: bool


def plans(layer: Layer, processes: int, tokens: int) -> list[Plan]:
    b, head_dim = layer.number, layer.head_dim
    others = (processes - 1) / processes
    whole = 2 * layer.size * tokens * b
    heads = 2 * (layer.heads + layer.key_heads) * head_dim * tokens * b
    result = []
    if layer.heads % processes == 0:
        own_keys = max(layer.key_heads / processes, 1)
        own = 2 * (layer.heads / processes + own_keys) * head_dim * tokens * b
        result.append(
            Plan("tensor", 2 * others * tokens * layer.size * b, whole + own, False)
        )
    keys = 2 * layer.key_heads * head_dim * tokens * b
    # Three quarters of the others' keys, since tokens are balanced, and memory for
    # two steps' more.
    result.append(
        Plan(
            "ring",
            others * keys * 3 / 4,
            (whole + heads + 2 * keys) / processes,
            True,
        )
    )
    if layer.heads % processes == 0:
        result.append(
            Plan(
                "all_to_all",
                others / processes * heads,
                (whole + 2 * heads) / processes,
                False,
            )
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[8, 64, 1024])
    parser.add_argument("--tokens", type=int, nargs="+", default=[131072, 1048576])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--key-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--bytes", type=int, default=2, help="of a number")
    parser.add_argument("--link", type=float, default=50, help="GB/s of a process")
    parser.add_argument("--speed", type=float, default=400, help="TFLOP/s of one")
    given = parser.parse_args()
    layer = Layer(
        given.size, given.heads, given.key_heads, given.head_dim, given.bytes
    )
    print("| processes | tokens | scheme | sends, MB | holds, MB | sends, ms |", end="")
    print(" computes, ms | together, ms |")
    print("| --- " * 8 + "|")
    for processes in given.processes:
        for tokens in given.tokens:
            for plan in plans(layer, processes, tokens):
                sending = plan.sent / given.link / 1e6
                computing = layer.flops(tokens) / processes / given.speed / 1e9
                both = max(sending, computing) if plan.hidden else sending + computing
                print(
                    f"| {processes} | {tokens} | {plan.name} | {plan.sent / 1e6:.0f} "
                    f"| {plan.held / 1e6:.0f} | {sending:.2f} | {computing:.1f} "
                    f"| {both:.1f} |"
                )


if __name__ == "__main__":
    main()
