#!/usr/bin/env python3
"""Measures LibTorch's attention by its kernels and by ours, interleaved, in Python.

`sdpa` is the table of docs/sdpa.md: the same calls with replace_sdpa on and off,
what passing a call on costs, and whole modules. `python` is that of
docs/python.md: operators of ours beside F.scaled_dot_product_attention.
`compiled` is both under torch.compile, which needs a C++ compiler, and `models`
models of transformers, if that is installed. Outputs are compared first, but
for those with dropout.

    python benchmarks/operators.py build/release/lib --only sdpa
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.agreement import difference
from harness.machine import describe_machine
from harness.measure import Effort, interleave, ratio, spread, timer
from harness.report import ratio_text, time_text

EFFORT = Effort(2, 5, 41)
# The part of the largest element by which outputs may differ.
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}

Run = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    name: str
    theirs: Run
    ours: Run
    # False for dropout: it is drawn from different streams.
    same: bool = True


def switched(run: Run, *, on: bool) -> Run:
    """Returns `run` with LibTorch's attention replaced, or not."""
    ops = torch.ops.torch_attention
    switch = ops.replace_sdpa if on else ops.restore_sdpa

    def result() -> Any:
        switch()
        return run()

    return result


def replaced(name: str, run: Run, *, same: bool = True) -> Case:
    return Case(name, switched(run, on=False), switched(run, on=True), same)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype)


def with_gradients(run: Callable[..., Tensor], *inputs: Tensor) -> Run:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    factors = torch.ones_like(run(*leaves))
    return lambda: torch.autograd.grad(run(*leaves), leaves, factors)


def sdpa(**options: Any) -> Callable[..., Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def calls_of_sdpa() -> Iterator[Case]:
    """B = 8, H = 12, T = 1024, D = 64."""
    q, k, v = (draw(8, 12, 1024, 64) for _ in range(3))
    keys = torch.rand(8, 1, 1, 1024) < 0.9
    pairs = torch.rand(8, 1, 1024, 1024) < 0.9
    bias = draw(1024, 1024)
    narrow = draw(8, 12, 1024, 32)
    few = [draw(8, 3, 1024, 64) for _ in range(2)]

    def call(name: str, *inputs: Tensor, same: bool = True, **options: Any) -> Case:
        run = sdpa(**options)
        return replaced(name, lambda: run(*inputs), same=same)

    yield call("forward", q, k, v)
    yield call("causal", q, k, v, is_causal=True)
    yield call("bool mask of keys", q, k, v, attn_mask=keys)
    yield call("bool mask of queries and keys", q, k, v, attn_mask=pairs)
    yield call("float mask", q, k, v, attn_mask=bias)
    yield call("3 heads of keys for 12", q, *few, enable_gqa=True)
    yield call("dropout", q, k, v, dropout_p=0.1, same=False)
    yield call("value of size 32", q, k, narrow)
    yield replaced(
        "forward and backward, causal",
        with_gradients(sdpa(is_causal=True), q, k, v),
    )
    yield replaced(
        "forward and backward, dropout",
        with_gradients(sdpa(dropout_p=0.1), q, k, v),
        same=False,
    )
    for dtype in (torch.bfloat16, torch.float16):
        half = [x.to(dtype) for x in (q, k, v)]
        name = str(dtype)[6:]
        yield call(f"forward, {name}", *half)
        yield call(f"causal, {name}", *half, is_causal=True)


def small_calls() -> Iterator[Case]:
    """Small calls that ours computes, and others that LibTorch's kernels get."""
    small = [draw(1, 4, 16, 16) for _ in range(3)]
    yield replaced("small call, T = 16, 4 heads of 16", lambda: sdpa()(*small))
    empty = small[0][:, :, :0]
    yield replaced(
        "passed on: no queries", lambda: sdpa()(empty, *small[1:])
    )
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    yield replaced("the flash operator, small", lambda: flash(*small))

    def math() -> Any:
        return sdpa()(*small)

    def by_math(run: Run) -> Run:
        def result() -> Any:
            torch._C._set_sdp_use_flash(False)
            try:
                return run()
            finally:
                torch._C._set_sdp_use_flash(True)

        return result

    case = replaced("passed on: LibTorch's math is asked for", math)
    yield Case(case.name, by_math(case.theirs), by_math(case.ours))


def modules() -> Iterator[Case]:
    x = draw(8, 512, 512)
    attention = torch.nn.MultiheadAttention(512, 8, batch_first=True).eval()
    layer = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True).eval()

    def run_attention() -> Tensor:
        with torch.no_grad():
            return attention(x, x, x, need_weights=False)[0]

    def run_layer() -> Tensor:
        with torch.no_grad():
            return layer(x)

    yield replaced("nn.MultiheadAttention(512, 8), T = 512", run_attention)
    yield replaced("nn.TransformerEncoderLayer(512, 8), T = 512", run_layer)


def operators() -> Iterator[Case]:
    ops = torch.ops.torch_attention
    theirs, ours = F.scaled_dot_product_attention, ops.attention
    q, k, v = (draw(4, 12, 512, 64) for _ in range(3))
    yield Case(
        "forward and backward, causal, dropout 0.1: B4 H12 T512 D64",
        with_gradients(sdpa(is_causal=True, dropout_p=0.1), q, k, v),
        with_gradients(
            lambda *x: ours(*x, causal=True, dropout_p=0.1), q, k, v
        ),
        same=False,
    )
    yield Case(
        "forward and backward, causal: the same",
        with_gradients(sdpa(is_causal=True), q, k, v),
        with_gradients(lambda *x: ours(*x, causal=True), q, k, v),
    )
    long = [draw(1, 12, 4096, 64) for _ in range(3)]
    square = torch.ones(4096, 4096, dtype=torch.bool)
    band = square.tril() & square.triu(-255)
    yield Case(
        "forward, window of 256: B1 H12 T4096 D64",
        lambda: theirs(*long, attn_mask=band),
        lambda: ours(*long, causal=True, window=256),
    )
    yield Case(
        "forward, causal: the same",
        lambda: theirs(*long, is_causal=True),
        lambda: ours(*long, causal=True),
    )
    query, key, value = draw(8, 32, 1, 128), draw(8, 8, 1, 128), draw(8, 8, 1, 128)
    caches = [draw(8, 8, 2048, 128) for _ in range(2)]
    lengths = torch.full((8,), 2000)

    def step() -> Tensor:
        for cache, new in zip(caches, (key, value), strict=True):
            cache[:, :, 2000:2001] = new
        return theirs(query, *(c[:, :, :2001] for c in caches), enable_gqa=True)

    yield Case(
        "decode step, 32 heads on 8: B8 S2001 D128",
        step,
        lambda: ops.decode(query, key, value, *caches, lengths),
    )


def compiled() -> Iterator[Case]:
    inputs = [draw(4, 12, 512, 64) for _ in range(3)]
    ours = torch.ops.torch_attention.attention

    def make(run: Callable[..., Tensor]) -> Run:
        return with_gradients(torch.compile(run, fullgraph=True), *inputs)

    for dropout in (0.0, 0.1):
        name = f"compiled, forward and backward, causal, dropout {dropout}"
        theirs = make(sdpa(is_causal=True, dropout_p=dropout))
        yield replaced(f"{name}: replace_sdpa", theirs, same=not dropout)
        by_ours = make(lambda *x, p=dropout: ours(*x, causal=True, dropout_p=p))
        yield Case(
            f"{name}: our operator",
            switched(theirs, on=False),
            by_ours,
            same=not dropout,
        )


def models() -> Iterator[Case]:
    if not importlib.util.find_spec("transformers"):
        print("models are left out: transformers is not installed")
        return
    import transformers

    sizes = {
        "vocab_size": 1000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 4,
        "num_attention_heads": 12,
        "attn_implementation": "sdpa",
    }
    ids = torch.randint(0, 1000, (4, 512))
    mask = torch.ones_like(ids)
    mask[1:, 400:] = 0
    bert = transformers.BertModel(transformers.BertConfig(**sizes))
    llama = transformers.LlamaModel(
        transformers.LlamaConfig(num_key_value_heads=4, use_cache=False, **sizes)
    )

    def output(model: Any, mask: Tensor | None = None) -> Run:
        def run() -> Tensor:
            with torch.no_grad():
                return model(ids, attention_mask=mask).last_hidden_state

        return run

    def step(model: Any) -> Run:
        parameters = [p for n, p in model.named_parameters() if "pooler" not in n]

        def run() -> Any:
            y = model(ids).last_hidden_state
            return torch.autograd.grad(y, parameters, torch.ones_like(y))

        return run

    for name, model in (("BERT", bert), ("Llama", llama)):
        yield replaced(f"{name}, 4 layers of 768, forward", output(model.eval()))
        yield replaced(f"{name}, padded, forward", output(model, mask))
        # BERT drops a tenth of its weights; this Llama drops none.
        yield replaced(
            f"{name}, training step without the optimizer",
            step(model.train()),
            same=name != "BERT",
        )


GROUPS = {
    "sdpa": (calls_of_sdpa, small_calls, modules),
    "python": (operators,),
    "compiled": (compiled,),
    "models": (models,),
}


def measure(case: Case) -> bool:
    """Prints the row of a case. Returns whether both ways agree."""
    theirs, ours = (
        [x for x in (r if isinstance(r, tuple) else [r]) if isinstance(x, Tensor)]
        for r in (case.theirs(), case.ours())
    )
    if case.same and theirs[0].numel() > 0:
        distance = difference(ours, theirs)
        if not distance <= ALLOWED[theirs[0].dtype]:
            print(f"| {case.name} | no figures: differs by {distance:.1e} |")
            return False
    seconds = interleave([timer(case.theirs), timer(case.ours)], EFFORT)
    times = " | ".join(time_text(spread(taken)["median"]) for taken in seconds)
    print(f"| {case.name} | {times} | {ratio_text(ratio(*seconds))} |", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path, help="folder of the library")
    parser.add_argument("--only", choices=GROUPS, help="one of the tables")
    options = parser.parse_args()
    torch.ops.load_library(options.library / "libtorch_attention.so")
    machine = describe_machine()
    print(
        f"{machine['cpu']}, {machine['threads']} threads, "
        f"PyTorch {machine['libtorch']}"
    )
    torch.manual_seed(0)
    agree = True
    for name, group in GROUPS.items():
        if options.only in (None, name):
            print("\n| work | LibTorch's | ours | ratio |\n| --- | --- | --- | --- |")
            for cases in group:
                for case in cases():
                    agree &= measure(case)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
