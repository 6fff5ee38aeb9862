#!/usr/bin/env python3
"""Writes reference cases of the attention classes for the C++ tests.

Every case is a pair of files:

  NAME.pt           the traced module (TorchScript) before training
  NAME.expected.pt  one plain dict that C++ reads with torch::pickle_load:
      config      class and constructor keywords of the module
      training    mode of the module
      seed        seed of the random stream, see below
      draws       what dropout keeps under a seed, see random_draws()
      input       x
      cotangent   g, of the output's shape
      output      module(x)
      gradients   of sum(module(x) * g): "input" and every parameter
      adamw       lr, beta1, beta2, eps, weight_decay, steps
      trained     every parameter after these steps

The random stream is seeded twice with the same seed: before the module is
built (random and golden cases only) and before its three training steps.

Shapes: B batch, T tokens, L context length, H heads, D head dimension.
"""

from __future__ import annotations

import argparse
import inspect
import io
import itertools
import json
import random
import sys
import tempfile
import time
import unicodedata
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The key bias has gradient zero in exact arithmetic: it shifts all scores of
# a row alike. A small eps would turn its rounding noise into whole steps, so
# eps is large on purpose.
ADAMW = {
    "lr": 1e-2,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-3,
    "weight_decay": 0.01,
    "steps": 3,
}

DTYPE_NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
}

# dtype -> (rtol, atol), as torch.testing has them.
TOLERANCES = {
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.bfloat16: (1.6e-2, 1e-3),
}

# C++ reads a pickled int of four bytes or of eight, nothing between: seeds
# stay below this so that they take four.
SEED_LIMIT = 2**31 - 1


class ExportError(Exception):
    """A failure to be told in one line."""


# --- The reference classes -------------------------------------------------
#
# Scores are scaled by integers kept in the module: a size read from a tensor
# is itself a tensor while tracing, and its root would be rounded to float32.


class SelfAttentionV1(nn.Module):
    """Self-attention on bare weight matrices: (T, d_in) -> (T, d_out)."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.d_out = d_out
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x: Tensor) -> Tensor:
        keys = x @ self.W_key
        queries = x @ self.W_query
        values = x @ self.W_value
        scores = queries @ keys.transpose(-2, -1)  # (T, T)
        weights = torch.softmax(scores / self.d_out**0.5, dim=-1)
        return weights @ values


class SelfAttentionV2(nn.Module):
    """Self-attention on linear layers: (T, d_in) -> (T, d_out)."""

    def __init__(self, d_in: int, d_out: int, qkv_bias: bool = False) -> None:
        super().__init__()
        self.d_out = d_out
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        scores = queries @ keys.transpose(-2, -1)  # (T, T)
        weights = torch.softmax(scores / self.d_out**0.5, dim=-1)
        return weights @ values


def future_mask(context_length: int) -> Tensor:
    """Ones above the diagonal: (L, L)."""
    ones = torch.ones(context_length, context_length)
    return torch.triu(ones, diagonal=1)


class CausalAttention(nn.Module):
    """One masked head with dropout: (B, T, d_in) -> (B, T, d_out).

    With causal=False the mask is registered but not applied.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        qkv_bias: bool = False,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.d_out = d_out
        self.causal = causal
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", future_mask(context_length))

    def forward(self, x: Tensor) -> Tensor:
        _, t, _ = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        scores = queries @ keys.transpose(1, 2)  # (B, T, T)
        if self.causal:
            scores.masked_fill_(self.mask.bool()[:t, :t], -torch.inf)
        weights = torch.softmax(scores / self.d_out**0.5, dim=-1)
        weights = self.dropout(weights)
        return weights @ values


class MultiHeadAttentionWrapper(nn.Module):
    """Heads side by side: (B, T, d_in) -> (B, T, H * d_out)."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            CausalAttention(
                d_in, d_out, context_length, dropout, qkv_bias, causal
            )
            for _ in range(num_heads)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)


class MultiHeadAttention(nn.Module):
    """Heads split from one projection: (B, T, d_in) -> (B, T, d_out).

    With causal=False the mask is registered but not applied.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
        causal: bool = True,
    ) -> None:
        super().__init__()
        if d_out % num_heads:
            raise ValueError("d_out must be divisible by num_heads")
        self.d_out = d_out
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.causal = causal
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", future_mask(context_length))

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)

        # (B, T, d_out) -> (B, T, H, D) -> (B, H, T, D)
        keys = keys.view(b, t, self.num_heads, self.head_dim)
        values = values.view(b, t, self.num_heads, self.head_dim)
        queries = queries.view(b, t, self.num_heads, self.head_dim)
        keys = keys.transpose(1, 2)
        queries = queries.transpose(1, 2)
        values = values.transpose(1, 2)

        scores = queries @ keys.transpose(2, 3)  # (B, H, T, T)
        if self.causal:
            scores.masked_fill_(self.mask.bool()[:t, :t], -torch.inf)
        weights = torch.softmax(scores / self.head_dim**0.5, dim=-1)
        weights = self.dropout(weights)

        context = (weights @ values).transpose(1, 2)  # (B, T, H, D)
        context = context.contiguous().view(b, t, self.d_out)
        return self.out_proj(context)


# Short name -> class; the short names begin the names of cases.
CLASSES = {
    "self-v1": SelfAttentionV1,
    "self-v2": SelfAttentionV2,
    "single": CausalAttention,
    "wrapper": MultiHeadAttentionWrapper,
    "mha": MultiHeadAttention,
}


# --- One case --------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What makes a case; a class ignores the options it does not take."""

    kind: str
    d_in: int
    d_out: int
    tokens: int
    context_length: int = 0
    num_heads: int = 1
    dropout: float = 0.0
    qkv_bias: bool = False
    causal: bool = True
    dtype: torch.dtype = torch.float32
    batch: int = 2
    training: bool = False
    seed: int = 123

    @property
    def arguments(self) -> dict[str, Any]:
        """The constructor's keywords."""
        return {name: getattr(self, name) for name in keywords(self.kind)}

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the input: (T, d_in) or (B, T, d_in)."""
        unbatched = (self.tokens, self.d_in)
        if "context_length" not in self.arguments:
            return unbatched
        return (self.batch, *unbatched)

    @property
    def name(self) -> str:
        """For example mha-h4-8to12-bias-causal-bf16-T7of16-train-p0.1."""
        taken = self.arguments
        tokens = f"T{self.tokens}"
        if "context_length" in taken:
            tokens += f"of{self.context_length}"
        parts = [
            self.kind,
            f"h{self.num_heads}" if "num_heads" in taken else "",
            f"{self.d_in}to{self.d_out}",
            "qkv_bias" in taken and ("bias" if self.qkv_bias else "nobias"),
            "causal" in taken and ("causal" if self.causal else "unmasked"),
            DTYPE_NAMES[self.dtype],
            tokens,
            "train" if self.training else "eval",
            f"p{self.dropout:g}" if self.dropout else "",
        ]
        return "-".join(part for part in parts if part)


def keywords(kind: str) -> list[str]:
    """What the constructor of a class takes, in its order."""
    return list(inspect.signature(CLASSES[kind]).parameters)


def draw(
    shape: Iterable[int], dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Normal values, drawn in double so that every CPU rounds them alike."""
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return x.to(dtype)


def export_case(folder: Path, name: str, case: Case) -> None:
    """Builds the module of a case, draws its input and writes both files."""
    torch.manual_seed(case.seed)
    module = CLASSES[case.kind](**case.arguments)
    module.to(case.dtype).train(case.training)

    # Not the stream that the weights came from.
    generator = torch.Generator().manual_seed(case.seed + 1)
    x = draw(case.shape, case.dtype, generator)
    export(folder, name, module, case.arguments, x, generator, case.seed)


def export(
    folder: Path,
    name: str,
    module: nn.Module,
    arguments: dict[str, Any],
    x: Tensor,
    generator: torch.Generator,
    seed: int,
) -> None:
    """Writes NAME.pt and NAME.expected.pt; leaves the module trained."""
    archive = trace(module, x, arguments.get("context_length"), generator)
    with torch.no_grad():
        g = draw(module(x).shape, x.dtype, generator)
    expected = {
        "config": {"class": type(module).__name__, **arguments},
        "training": module.training,
        "seed": seed,
        "draws": random_draws(),
        "input": x,
        "cotangent": g,
        **run(module, x, g, seed),
    }
    buffer = io.BytesIO()
    torch.save(expected, buffer)
    (folder / f"{name}.pt").write_bytes(archive)
    (folder / f"{name}.expected.pt").write_bytes(buffer.getvalue())


def random_draws() -> Tensor:
    """What dropout keeps of 32 elements: a sample of the random stream.

    Releases, and builds with and without MKL, draw differently from one seed.
    Who draws another sample gets other results under dropout.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        return F.dropout(torch.ones(32), 0.5, training=True).bool()


def trace(
    module: nn.Module,
    x: Tensor,
    context_length: int | None,
    generator: torch.Generator,
) -> bytes:
    """The module as a TorchScript archive, general in B and T."""
    traced = torch.jit.trace(module, (x,), check_trace=False)
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    archive = without_debug_records(buffer)

    # Other B and T than those traced must give what the module gives.
    *batch, t, d_in = x.shape
    other_t = t + 1 if context_length is None else t % context_length + 1
    other_shape = (*(b + 1 for b in batch), other_t, d_in)
    other = draw(other_shape, x.dtype, generator)
    loaded = torch.jit.load(io.BytesIO(archive))
    outputs = []
    for forward in (module, loaded):
        torch.manual_seed(0)  # the same dropout in both
        with torch.no_grad():
            outputs.append(forward(other))
    torch.testing.assert_close(outputs[1], outputs[0])
    if loaded.training != module.training:
        raise ExportError("the archive has lost the module's mode")
    return archive


def without_debug_records(archive: io.BytesIO) -> bytes:
    """Drops the records that hold file names of the exporting machine."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(buffer, "w") as new:
        for record in old.namelist():
            if not record.endswith(".debug_pkl"):
                # A ZipInfo of its own has a fixed date.
                new.writestr(zipfile.ZipInfo(record), old.read(record))
    return buffer.getvalue()


def run(module: nn.Module, x: Tensor, g: Tensor, seed: int) -> dict[str, Any]:
    """Three AdamW steps on sum(module(x) * g), recorded as in the file."""
    optimizer = torch.optim.AdamW(
        module.parameters(),
        lr=ADAMW["lr"],
        betas=(ADAMW["beta1"], ADAMW["beta2"]),
        eps=ADAMW["eps"],
        weight_decay=ADAMW["weight_decay"],
        foreach=False,
    )
    result: dict[str, Any] = {}
    torch.manual_seed(seed)
    for step in range(ADAMW["steps"]):
        optimizer.zero_grad()
        leaf = x.detach().clone().requires_grad_()
        out = module(leaf)
        (out * g).sum().backward()
        if step == 0:
            gradients = {"input": plain(leaf.grad)}
            for key, parameter in module.named_parameters():
                gradients[key] = plain(parameter.grad)
            result["output"] = plain(out)
            result["gradients"] = gradients
        optimizer.step()
    result["adamw"] = dict(ADAMW)
    result["trained"] = {k: plain(p) for k, p in module.named_parameters()}
    return result


def plain(tensor: Tensor) -> Tensor:
    """A contiguous copy outside of autograd."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


# --- Random cases ----------------------------------------------------------


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
    """Random cases of one class; its decks hold what has to be covered."""

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
    # Each ten cases hold so many of each class: six times ten go through all
    # decks at least once.
    shares = {"self-v1": 1, "self-v2": 1, "single": 2, "wrapper": 3, "mha": 3}
    makers = {kind: CaseMaker(rng, kind) for kind in shares}
    kinds = Deck(rng, [k for k, share in shares.items() for _ in range(share)])
    while len(cases) < count:
        cases.append(makers[kinds.deal()].make())
    return cases[:count]


def unique_names(cases: Iterable[Case]) -> Iterator[tuple[str, Case]]:
    """Each case with its name, numbered where it came before."""
    seen: Counter[str] = Counter()
    for case in cases:
        seen[case.name] += 1
        again = seen[case.name]
        yield case.name if again == 1 else f"{case.name}-{again}", case


def export_random(folder: Path, count: int, seed: int | None) -> None:
    """Writes cases that are new unless the seed is given."""
    if seed is None:
        seed = random.SystemRandom().randrange(SEED_LIMIT)
    print(f"seed {seed} (--count {count} --seed {seed} repeats this run)")
    export_all(folder, random_cases(count, seed))


def export_all(folder: Path, cases: list[Case]) -> None:
    """Writes every case and says how many and how long it took."""
    start = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, case) in enumerate(unique_names(cases), start=1):
        export_case(folder, name, case)
        if sys.stdout.isatty():
            print(f"\r{number} of {len(cases)} cases", end="", flush=True)
    seconds = time.monotonic() - start
    end = "\r" if sys.stdout.isatty() else ""
    print(f"{end}{len(cases)} cases in {seconds:.1f} s")


# --- The committed cases ---------------------------------------------------

BF16 = torch.bfloat16
F64 = torch.float64

# float64 cases have widths that are powers of four: their initial weights,
# drawn as float32 within 1 / sqrt(width), are then the same to the last bit on
# every CPU. The bfloat16 case is small and has no bias: gradients that are
# the small rest of large sums, as the key bias's is, would be rounding noise.
GOLDEN = [
    Case("self-v1", 3, 2, 6),
    Case("self-v2", 3, 2, 6),
    Case("self-v2", 4, 4, 5, qkv_bias=True, dtype=F64),
    Case("single", 3, 2, 6, 6),
    Case("single", 4, 1, 4, 6, qkv_bias=True, causal=False, dtype=F64),
    Case("single", 4, 4, 5, 8, qkv_bias=True, dropout=0.5, training=True),
    Case("wrapper", 3, 2, 6, 6, num_heads=2),
    Case(
        "wrapper",
        4,
        2,
        3,
        4,
        num_heads=3,
        qkv_bias=True,
        causal=False,
        dropout=0.2,
        training=True,
    ),
    Case("mha", 3, 2, 6, 6, num_heads=2),
    Case(
        "mha", 16, 4, 4, 5, num_heads=2, qkv_bias=True, causal=False, dtype=F64
    ),
    Case("mha", 4, 4, 5, 8, num_heads=2, dtype=BF16),
    Case("mha", 6, 6, 1, 1, num_heads=3, qkv_bias=True),
    Case("mha", 5, 8, 1, 8, num_heads=4, causal=False, training=True),
    Case("mha", 8, 24, 5, 8, num_heads=12, qkv_bias=True, dropout=0.1),
    Case(
        "mha",
        8,
        8,
        8,
        8,
        num_heads=4,
        qkv_bias=True,
        dropout=0.1,
        training=True,
    ),
]


def check_golden(folder: Path) -> int:
    """Compares a folder with the golden set made anew; 1 if they differ."""
    if not folder.is_dir():
        raise ExportError(f"{folder}: no such folder")
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary)
        export_all(fresh, GOLDEN)
        found = [path for d in (fresh, folder) for path in d.iterdir()]
        files = {path.name for path in found if path.is_file()}
        cases = {f.removesuffix(".pt").removesuffix(".expected") for f in files}
        for case in sorted(cases):
            found = differences(folder, fresh, case)
            failures += bool(found)
            print("FAIL" if found else "ok  ", case)
            for line in found:
                print("      ", line)
    print(f"{len(cases) - failures} of {len(cases)} cases agree")
    return 1 if failures else 0


def differences(committed: Path, fresh: Path, case: str) -> list[str]:
    """What differs between two folders in one case, a line each."""
    if not (fresh / f"{case}.pt").is_file():
        return ["is not one of the golden cases"]
    for file in (f"{case}.pt", f"{case}.expected.pt"):
        if not (committed / file).is_file():
            return [f"{file} is missing"]
    try:
        ours = read_case(committed, case)
    except Exception as error:  # a broken file can raise nearly anything
        return [f"cannot be read: {first_line(error)}"]
    wanted = read_case(fresh, case)
    if list(ours) != list(wanted):
        names = sorted(set(ours) ^ set(wanted)) or ["their order"]
        return [f"names differ: {', '.join(names)}"]

    dropout = wanted["training"] and wanted.get("config.dropout", 0.0) > 0
    same_draws = torch.equal(ours.pop("draws"), wanted.pop("draws"))
    if dropout and not same_draws:
        print(f"{case}: this PyTorch draws dropout differently; not compared")
    lines = []
    for name, value in wanted.items():
        result = name.split(".")[0] in ("output", "gradients", "trained")
        drawn = dropout and result
        line = difference(ours[name], value, same_draws or not drawn)
        if line:
            lines.append(f"{name}: {line}")
    return lines


def difference(ours: Any, wanted: Any, compare_values: bool) -> str:
    """How two values differ, or nothing."""
    if not isinstance(ours, Tensor) or not isinstance(wanted, Tensor):
        same = type(ours) is type(wanted) and ours == wanted
        return "" if same else f"expected {wanted!r} but got {ours!r}"
    kinds = [(t.dtype, tuple(t.shape)) for t in (ours, wanted)]
    if kinds[0] != kinds[1]:
        return f"expected {kinds[1]} but got {kinds[0]}"
    if not compare_values:
        return ""
    rtol, atol = TOLERANCES[wanted.dtype]
    try:
        torch.testing.assert_close(ours, wanted, rtol=rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def read_case(folder: Path, case: str) -> dict[str, Any]:
    """Both files of a case as one dict of dotted names."""
    archive = torch.jit.load(str(folder / f"{case}.pt"))
    expected = torch.load(folder / f"{case}.expected.pt", weights_only=True)
    values = {f"archive.{k}": v for k, v in archive.state_dict().items()}
    values["archive.training"] = archive.training
    values.update(flatten(expected))
    return values


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


# --- A real encoder: all-MiniLM-L6-v2 --------------------------------------

HIDDEN = 384
HEADS = 12
LAYERS = 6
POSITIONS = 512

# The first two say the same. All have the same number of tokens, so that
# they make one batch without padding.
SENTENCES = [
    "The cat is sleeping on the sofa.",
    "A kitten is resting on the couch.",
    "The bank has raised its interest rates.",
    "Heavy rain flooded the streets last night.",
]

# Ours -> the encoder's, below encoder.layer.N.attention.
MINILM_NAMES = {
    "W_query": "self.query",
    "W_key": "self.key",
    "W_value": "self.value",
    "out_proj": "output.dense",
}

SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file: header length, JSON header, raw data."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        return {
            name: torch.frombuffer(
                data,
                dtype=SAFETENSORS_DTYPES[entry["dtype"]],
                count=torch.Size(entry["shape"]).numel(),
                offset=start + entry["data_offsets"][0],
            ).view(entry["shape"])
            for name, entry in header.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"{path}: not a readable safetensors file"
        raise ExportError(f"{message}: {first_line(error)}") from error


class WordPiece:
    """BERT's lower-case tokens, by greedy longest match."""

    def __init__(self, vocab: Path) -> None:
        lines = vocab.read_text(encoding="utf-8").splitlines()
        self.ids = {token: i for i, token in enumerate(lines)}
        missing = {"[CLS]", "[SEP]", "[UNK]"} - self.ids.keys()
        if missing:
            raise ExportError(f"{vocab}: lacks {', '.join(sorted(missing))}")

    def encode(self, sentence: str) -> list[int]:
        tokens = ["[CLS]"]
        for word in self.words(sentence):
            tokens += self.pieces(word)
        return [self.ids[token] for token in [*tokens, "[SEP]"]]

    def words(self, sentence: str) -> list[str]:
        """Lower case, no accents, punctuation apart."""
        spaced = ""
        for char in unicodedata.normalize("NFD", sentence.lower()):
            category = unicodedata.category(char)
            if category.startswith("P"):
                spaced += f" {char} "
            elif category != "Mn":
                spaced += char
        return spaced.split()

    def pieces(self, word: str) -> list[str]:
        pieces = []
        rest = word
        while rest:
            prefix = "##" if pieces else ""
            ends = range(len(rest), 0, -1)
            end = next((n for n in ends if prefix + rest[:n] in self.ids), 0)
            if end == 0:
                return ["[UNK]"]
            pieces.append(prefix + rest[:end])
            rest = rest[end:]
        return pieces


class Encoder:
    """The BERT encoder on its plain weights, after the papers' formulas."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def weight(self, name: str) -> Tensor:
        if name not in self.weights:
            raise ExportError(f"the model has no {name}")
        return self.weights[name].float()

    def embed(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, HIDDEN): words, positions, first segment."""
        words, positions, segments = (
            self.weight(f"embeddings.{kind}_embeddings.weight")
            for kind in ("word", "position", "token_type")
        )
        x = words[ids] + positions[: ids.shape[1]] + segments[0]
        return self.norm("embeddings.LayerNorm", x)

    def attention(self, layer: int, x: Tensor) -> Tensor:
        """Up to and with the output's dense layer, without its residual."""
        name = f"encoder.layer.{layer}.attention"
        q, k, v = (
            self.linear(f"{name}.self.{part}", x).unflatten(-1, (HEADS, -1))
            for part in ("query", "key", "value")
        )
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        context = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)
        return self.linear(f"{name}.output.dense", context.flatten(-2))

    def layer(self, layer: int, x: Tensor) -> Tensor:
        name = f"encoder.layer.{layer}"
        x = x + self.attention(layer, x)
        x = self.norm(f"{name}.attention.output.LayerNorm", x)
        y = F.gelu(self.linear(f"{name}.intermediate.dense", x))
        y = x + self.linear(f"{name}.output.dense", y)
        return self.norm(f"{name}.output.LayerNorm", y)

    def linear(self, name: str, x: Tensor) -> Tensor:
        weight = self.weight(f"{name}.weight")
        return F.linear(x, weight, self.weight(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.weight(f"{name}.weight")
        bias = self.weight(f"{name}.bias")
        return F.layer_norm(x, (HIDDEN,), weight, bias, eps=1e-12)


def export_minilm(folder: Path, model: Path, vocab: Path | None) -> None:
    """Writes one case per layer: its attention on real sentences."""
    start = time.monotonic()
    encoder = Encoder(read_safetensors(model))
    tokenizer = WordPiece(vocab or model.with_name("vocab.txt"))
    ids = [tokenizer.encode(sentence) for sentence in SENTENCES]
    if len({len(row) for row in ids}) != 1:
        raise ExportError("this vocabulary gives sentences of unequal length")

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(123)
    x = encoder.embed(torch.tensor(ids))
    for layer in range(LAYERS):
        export_layer(folder, encoder, layer, x, generator, model)
        x = encoder.layer(layer, x)

    # The sentences' embeddings show that the encoder is the real one.
    embeddings = F.normalize(x.mean(dim=1), dim=-1)
    alike, *unrelated = (embeddings[1:] @ embeddings[0]).tolist()
    print(f"cosine {alike:+.3f}  {SENTENCES[0]} | {SENTENCES[1]}")
    for cosine, sentence in zip(unrelated, SENTENCES[2:], strict=True):
        print(f"cosine {cosine:+.3f}  {SENTENCES[0]} | {sentence}")
    if alike < max(unrelated) + 0.3:
        raise ExportError("like sentences are not closer than unrelated ones")
    print(f"{2 * LAYERS} cases in {time.monotonic() - start:.1f} s")


def export_layer(
    folder: Path,
    encoder: Encoder,
    layer: int,
    x: Tensor,
    generator: torch.Generator,
    model: Path,
) -> None:
    """Writes one layer's attention as MultiHeadAttention; x: (B, T, C)."""
    case = Case(
        "mha",
        HIDDEN,
        HIDDEN,
        x.shape[1],
        POSITIONS,
        num_heads=HEADS,
        qkv_bias=True,
        causal=False,
    )
    module = MultiHeadAttention(**case.arguments).eval()
    state = module.state_dict()
    for ours, theirs in MINILM_NAMES.items():
        for part in ("weight", "bias"):
            name = f"encoder.layer.{layer}.attention.{theirs}.{part}"
            state[f"{ours}.{part}"] = encoder.weight(name)
    module.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(module(x), encoder.attention(layer, x))
    name = f"minilm-layer{layer}"
    export(folder, name, module, case.arguments, x, generator, case.seed)
    link_layer(folder, name, model, layer)


def link_layer(folder: Path, name: str, model: Path, layer: int) -> None:
    """The same case once more, with the model's own file for weights."""
    own = f"minilm-file-layer{layer}"
    expected = torch.load(folder / f"{name}.expected.pt", weights_only=True)
    expected["prefix"] = f"encoder.layer.{layer}.attention"
    torch.save(expected, folder / f"{own}.expected.pt")
    link = folder / f"{own}.safetensors"
    link.unlink(missing_ok=True)
    link.symlink_to(model.resolve())


# --- Command line ----------------------------------------------------------


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write reference cases of the attention classes."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("random", help="new random cases")
    command.add_argument("folder", type=Path, metavar="OUT")
    command.add_argument(
        "--count",
        type=int,
        default=62,
        help="number of cases; 62 or more cover every option (default: 62)",
    )
    command.add_argument(
        "--seed", type=int, help="repeat a run (default: from the system)"
    )

    command = commands.add_parser("golden", help="the committed cases")
    command.add_argument("folder", type=Path, metavar="OUT")

    command = commands.add_parser(
        "check", help="compare a folder with the golden cases made anew"
    )
    command.add_argument("folder", type=Path, metavar="DIR")

    command = commands.add_parser(
        "minilm", help="the attention layers of all-MiniLM-L6-v2"
    )
    command.add_argument("folder", type=Path, metavar="OUT")
    command.add_argument(
        "--model", type=Path, required=True, metavar="MODEL.safetensors"
    )
    command.add_argument(
        "--vocab", type=Path, help="default: vocab.txt beside the model"
    )

    options = parser.parse_args(arguments)
    if options.command == "random" and options.count < 1:
        parser.error("--count must be positive")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    # Newer releases call TorchScript deprecated at each use of it.
    warnings.filterwarnings("ignore", message=r"(?s).*torch\.jit")
    try:
        if options.command == "random":
            export_random(options.folder, options.count, options.seed)
        elif options.command == "golden":
            export_all(options.folder, GOLDEN)
        elif options.command == "check":
            return check_golden(options.folder)
        else:
            export_minilm(options.folder, options.model, options.vocab)
    except (ExportError, OSError, UnicodeError) as error:
        print(f"export_reference.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
