"""Random reference cases, new ones in each run unless the seed is given."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch_attention_reference.classes import keywords
from torch_attention_reference.recording import SEED_LIMIT

from .case import DTYPE_NAMES, Case, write_all


def write(folder: Path, count: int, seed: int | None) -> None:
    """Writes cases, and says how to write the same again."""
    if seed is None:
        seed = random.SystemRandom().randrange(SEED_LIMIT)
    print(f"seed {seed} (--count {count} --seed {seed} repeats this run)")
    write_all(folder, random_cases(count, seed))


def random_cases(count: int, seed: int) -> list[Case]:
    """A book-sized case, a GPT-2-sized case, then cases from the decks."""
    rng = random.Random(seed)
    seeds = [rng.randrange(SEED_LIMIT) for _ in range(2)]
    cases = [
        Case("mha", 3, 2, 6, 6, num_heads=2, seed=seeds[0]),
        Case(
            "mha",
            768,
            768,
            128,
            128,
            num_heads=12,
            qkv_bias=True,
            seed=seeds[1],
        ),
    ]
    # The numbers of cases of each class among ten. Six times ten cases go
    # through all decks at least once.
    shares = {"self-v1": 1, "self-v2": 1, "single": 2, "wrapper": 3, "mha": 3}
    makers = {kind: CaseMaker(rng, kind) for kind in shares}
    kinds = Deck(rng, [k for k, share in shares.items() for _ in range(share)])
    while len(cases) < count:
        cases.append(makers[kinds.deal()].make())
    return cases[:count]


class Deck:
    """Deals every value once, in random order, before any value again."""

    def __init__(self, rng: random.Random, values: Iterable[Any]) -> None:
        self.rng = rng
        self.values = list(values)
        self.left: list[Any] = []

    def deal(self) -> Any:
        if not self.left:
            self.left = self.rng.sample(self.values, len(self.values))
        return self.left.pop()


class CaseMaker:
    """Random cases of one class; its decks hold the values to be covered."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        self.rng = rng
        self.kind = kind
        takes = keywords(kind)

        def deck(keyword: str, values: Iterable[Any], otherwise: Any) -> Deck:
            return Deck(rng, values if keyword in takes else otherwise)

        self.options = Deck(
            rng,
            itertools.product(
                DTYPE_NAMES,
                (False, True) if "qkv_bias" in takes else (False,),
                (False, True) if "causal" in takes else (True,),
            ),
        )
        self.modes = deck(  # (training, dropout)
            "dropout",
            [(False, 0.0), (False, 0.1), (True, 0.0), (True, 0.1), (True, 0.5)],
            [(False, 0.0), (True, 0.0)],
        )
        self.lengths = deck(
            "context_length",
            ["one", "inside", "inside", "inside", "full", "full", "shortest"],
            ["one", "full", "full"],
        )
        self.heads = deck("num_heads", range(1, 13), [1])
        self.square = Deck(rng, [True, False, False])  # d_in == d_out

    def make(self) -> Case:
        rng = self.rng
        dtype, qkv_bias, causal = self.options.deal()
        training, dropout = self.modes.deal()
        heads = self.heads.deal()
        d_out = rng.choice([1, 2, 3, 5, 8, 16])
        if self.kind == "mha":
            d_out *= heads
        others = [n for n in range(1, 65) if n != d_out]
        how = self.lengths.deal()
        length = 1 if how == "shortest" else rng.randint(3, 40)
        inside = 1 if how == "one" else rng.randint(2, max(2, length - 1))
        return Case(
            kind=self.kind,
            d_in=d_out if self.square.deal() else rng.choice(others),
            d_out=d_out,
            tokens=length if how in ("full", "shortest") else inside,
            context_length=length,
            num_heads=heads,
            dropout=dropout,
            qkv_bias=qkv_bias,
            causal=causal,
            dtype=dtype,
            batch=rng.randint(1, 4),
            training=training,
            seed=rng.randrange(SEED_LIMIT),
        )
