#!/usr/bin/env python3
"""Prints what the schemes of docs/distributed.md send and hold, by their formulas.

    python scripts/plan_processes.py --processes 8 64 1024 --tokens 131072 1048576
    python scripts/plan_processes.py --backward --tensor 4

One attention layer of one causal sequence, forward, or forward and backward. Times
are those of a link and a device that do what the options say, and nothing else: a
plan, not a measurement. Sending by the ring is hidden behind computing; the others'
is added. "tensor 8 x ring" is a ring of groups of 8 that share heads.
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

    def part(self, processes: int) -> Layer:
        """The heads of one of so many; each has a key head at least."""
        return Layer(
            self.size,
            self.heads // processes,
            max(self.key_heads // processes, 1),
            self.head_dim,
            self.number,
        )

    def weights(self) -> int:
        """Bytes of the projections of queries, keys, values and the output."""
        return 2 * (self.heads + self.key_heads) * self.head_dim * self.size * self.number

    def key_weights(self) -> int:
        return 2 * self.key_heads * self.head_dim * self.size * self.number

    def keys(self, tokens: float) -> float:
        """Bytes of keys and values: what a cache holds too."""
        return 2 * self.key_heads * self.head_dim * tokens * self.number

    def activations(self, tokens: float) -> float:
        """Bytes of input, queries, keys, values, context and output."""
        ends = 2 * self.size * tokens * self.number
        queries = 2 * self.heads * self.head_dim * tokens * self.number
        return ends + queries + self.keys(tokens)

    def flops(self, tokens: int, backward: bool) -> float:
        """Counts projections, causal scores and context. Backward has twice the
        products of projections, and 5 for the 2 of attention, whose scores it
        computes again."""
        projections = self.weights() / self.number * 2 * tokens
        attention = 2 * tokens**2 * self.heads * self.head_dim
        return projections * (3 if backward else 1) + attention * (
            3.5 if backward else 1
        )


@dataclass
class Plan:
    name: str
    sent: float  # bytes that computing waits for, of one process
    sent_meanwhile: float  # bytes that go while it computes
    held: float  # bytes of weights and activations, and of the gradients of both


def all_reduced(bytes_of_one: float, processes: int) -> float:
    return 2 * (processes - 1) / processes * bytes_of_one


def tensor(layer: Layer, processes: int, tokens: float, backward: bool) -> Plan:
    own = layer.part(processes)
    passes = 2 if backward else 1
    sent = passes * all_reduced(tokens * layer.size * layer.number, processes)
    if backward and layer.key_heads < processes:
        sent += all_reduced(layer.key_weights(), processes)
    held = passes * (own.weights() + own.activations(tokens))
    return Plan("tensor", sent, 0, held)


def ring(layer: Layer, processes: int, tokens: float, backward: bool) -> Plan:
    # Three quarters of the others' keys, since tokens are balanced; backward keys
    # again, and their gradients.
    keys = layer.keys(tokens)
    times = 3 if backward else 1
    meanwhile = times * (processes - 1) / processes * keys * 3 / 4
    passes = 2 if backward else 1
    # And memory for two steps' keys.
    held = passes * (
        layer.weights() + (layer.activations(tokens) + 2 * keys) / processes
    )
    gradients = all_reduced(layer.weights(), processes) if backward else 0
    return Plan("ring", gradients, meanwhile, held)


def all_to_all(layer: Layer, processes: int, tokens: float, backward: bool) -> Plan:
    # Key heads are repeated where there are fewer than processes.
    heads = layer.heads + max(layer.key_heads, processes)
    moved = 2 * heads * layer.head_dim * tokens * layer.number
    passes = 2 if backward else 1
    sent = passes * (processes - 1) / processes**2 * moved
    if backward:
        sent += all_reduced(layer.weights(), processes)
    held = passes * (layer.weights() + (layer.activations(tokens) + moved) / processes)
    return Plan("all_to_all", sent, 0, held)


def tensor_of_ring(
    layer: Layer, shared: int, processes: int, tokens: int, backward: bool
) -> Plan:
    """`shared` processes share the heads of the tokens that each place of a ring of
    the others has."""
    places = processes // shared
    heads = tensor(layer, shared, tokens / places, backward)
    keys = ring(layer.part(shared), places, tokens, backward)
    own = layer.part(shared)
    passes = 2 if backward else 1
    held = heads.held + passes * 2 * own.keys(tokens) / places
    return Plan(
        f"tensor {shared} x ring",
        heads.sent + keys.sent,
        keys.sent_meanwhile,
        held,
    )


def plans(
    layer: Layer, processes: int, tokens: int, backward: bool = False, shared: int = 8
) -> list[Plan]:
    result = []
    fits = layer.heads % processes == 0
    if fits:
        result.append(tensor(layer, processes, tokens, backward))
    result.append(ring(layer, processes, tokens, backward))
    if fits:
        result.append(all_to_all(layer, processes, tokens, backward))
    if processes > shared and processes % shared == 0 and layer.heads % shared == 0:
        result.append(tensor_of_ring(layer, shared, processes, tokens, backward))
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
    parser.add_argument(
        "--backward", action="store_true", help="of a training step: both passes"
    )
    parser.add_argument(
        "--tensor", type=int, default=8, help="processes that share heads in a ring"
    )
    given = parser.parse_args()
    layer = Layer(
        given.size, given.heads, given.key_heads, given.head_dim, given.bytes
    )
    print("| processes | tokens | scheme | sends, MB | holds, MB | sends, ms |", end="")
    print(" computes, ms | together, ms |")
    print("| --- " * 8 + "|")
    for processes in given.processes:
        for tokens in given.tokens:
            computing = (
                layer.flops(tokens, given.backward) / processes / given.speed / 1e9
            )
            for plan in plans(
                layer, processes, tokens, given.backward, given.tensor
            ):
                waiting = plan.sent / given.link / 1e6
                meanwhile = plan.sent_meanwhile / given.link / 1e6
                both = max(meanwhile, computing) + waiting
                print(
                    f"| {processes} | {tokens} | {plan.name} "
                    f"| {(plan.sent + plan.sent_meanwhile) / 1e6:.0f} "
                    f"| {plan.held / 1e6:.0f} | {waiting + meanwhile:.2f} "
                    f"| {computing:.1f} | {both:.1f} |"
                )


if __name__ == "__main__":
    main()
