#!/usr/bin/env python3
"""Measures our operators on a CUDA device against LibTorch's attention, interleaved.

Times are the device's, by events. LibTorch's are F.scaled_dot_product_attention with each
of its backends, a mask where a rule needs one, and torch.compile(flex_attention). Outputs
are compared first. The roof is a matrix product in the dtype, and a copy of memory.

    python benchmarks/cuda.py build/release/lib
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from harness.agreement import difference, results_of
from harness.cuda import event_timer
from harness.measure import Effort, interleave, ratio, spread
from harness.report import ratio_text, time_text

EFFORT = Effort(0.6, 5, 31, 4e-3)
# The part of the largest element by which outputs may differ.
ALLOWED = {torch.float32: 2e-3, torch.bfloat16: 3e-2, torch.float16: 5e-3}
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}

Run = Callable[[], Any]
Attend = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    name: str
    ours: Run
    theirs: dict[str, Run]
    dtype: torch.dtype
    # Operations or bytes that the call needs, for the share of the roof.
    flops: float = 0.0
    bytes_read: float = 0.0
    # False for dropout: it is drawn from different streams.
    same: bool = True


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=dtype, device="cuda")


def with_gradients(run: Attend, *inputs: Tensor) -> Run:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    same = torch.Generator("cuda").manual_seed(0)
    factors = torch.empty_like(inputs[0]).normal_(generator=same)
    return lambda: torch.autograd.grad(run(*leaves), leaves, factors)


def call(run: Attend, *inputs: Tensor, backward: bool) -> Run:
    return with_gradients(run, *inputs) if backward else lambda: run(*inputs)


def captured(run: Run) -> Run:
    """Returns what replays `run` from a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()

    def replay() -> Any:
        graph.replay()
        return output

    return replay


def ours(**rule: Any) -> Attend:
    return functools.partial(torch.ops.torch_attention.attention, **rule)


def sdpa(backend: str = "", **options: Any) -> Attend:
    def run(*x: Tensor) -> Tensor:
        if not backend:
            return F.scaled_dot_product_attention(*x, **options)
        with sdpa_kernel(BACKENDS[backend]):
            return F.scaled_dot_product_attention(*x, **options)

    return run


def by_backends(**options: Any) -> dict[str, Attend]:
    return {f"sdpa, {name}": sdpa(name, **options) for name in BACKENDS}


def flops_of(x: Tensor, pairs: float, *, backward: bool) -> float:
    """Two products forward, five backward, of `pairs` queries and keys a head."""
    B, H, _, D = x.shape
    return 4 * B * H * pairs * D * (3.5 if backward else 1)


def plain() -> Iterator[Case]:
    """All tokens of a text, causal: prompts and training."""
    B, H, T = 4, 16, 4096
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for D in (64, 128, 256):
            x = [draw(B, H, T, D, dtype=dtype) for _ in range(3)]
            for dropout, backward in ((0.0, False), (0.0, True), (0.1, True)):
                if dropout and D != 64:
                    continue
                options = {"is_causal": True, "dropout_p": dropout}
                mine = ours(causal=True, dropout_p=dropout)
                yield Case(
                    f"causal B{B} H{H} T{T} D{D}"
                    + (", forward and backward" if backward else "")
                    + (f", dropout {dropout}" if dropout else ""),
                    call(mine, *x, backward=backward),
                    {
                        name: call(run, *x, backward=backward)
                        for name, run in by_backends(**options).items()
                    },
                    dtype,
                    flops_of(x[0], T * T / 2, backward=backward),
                    same=not dropout,
                )


def small() -> Iterator[Case]:
    """Calls whose time is the host's."""
    dtype = torch.bfloat16
    x = [draw(1, 8, 16, 64, dtype=dtype) for _ in range(3)]
    mask = torch.ones(16, 16, dtype=torch.bool, device="cuda").tril().triu(-4)
    for backward in (False, True):
        ending = ", forward and backward" if backward else ""
        for name, rule, options in (
            ("causal", {"causal": True}, {"is_causal": True}),
            ("window of 5", {"causal": True, "window": 5}, {"attn_mask": mask}),
        ):
            yield Case(
                f"small call, {name}, B1 H8 T16 D64{ending}",
                call(ours(**rule), *x, backward=backward),
                {"sdpa, its choice": call(sdpa(**options), *x, backward=backward)},
                dtype,
                flops_of(x[0], 16 * 16 / 2, backward=backward),
            )


def grouped() -> Iterator[Case]:
    B, H, G, T, D = 4, 32, 8, 4096, 128
    x = [draw(B, h, T, D, dtype=torch.bfloat16) for h in (H, G, G)]
    for backward in (False, True):
        yield Case(
            f"causal, 32 heads on 8, B{B} T{T} D{D}"
            + (", forward and backward" if backward else ""),
            call(ours(causal=True, enable_gqa=True), *x, backward=backward),
            {
                name: call(run, *x, backward=backward)
                for name, run in by_backends(is_causal=True, enable_gqa=True).items()
            },
            torch.bfloat16,
            flops_of(x[0], T * T / 2, backward=backward),
        )


@dataclass(frozen=True)
class Ruled:
    """A rule of attention: ours, as a mask, and as functions of flex_attention."""

    name: str
    rule: dict[str, Any]
    pairs: float
    hides: Tensor | None = None
    mask_mod: Any = None
    score_mod: Any = None
    # Added to the scores (1, H, T, T) in LibTorch's.
    bias: Callable[[torch.dtype], Tensor] | None = None
    # A sink of each head (H,).
    sinks: Tensor | None = None


def eager(ruled: Ruled) -> Attend:
    """The definition by operators, for rules that no mask expresses."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT * q.size(-1) ** -0.5
        if "softcap" in ruled.rule:
            cap = ruled.rule["softcap"]
            scores = (scores / cap).tanh() * cap
        scores = scores.masked_fill(ruled.hides, float("-inf"))
        if ruled.sinks is None:
            return scores.softmax(-1).to(v.dtype) @ v
        sink = ruled.sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1].to(v.dtype) @ v

    return run


def rules(H: int, T: int) -> Iterator[Ruled]:
    rows = torch.arange(T, device="cuda")
    causal = rows[:, None] < rows
    half = T * T / 2
    W = 512

    def is_before(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k

    def in_window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < W)

    far = causal | (rows[:, None] - rows >= W)
    yield Ruled(f"window of {W}", {"causal": True, "window": W}, T * W, far, in_window)
    chunk = causal | (rows[:, None] // 1024 != rows // 1024)

    def in_chunk(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q // 1024 == k // 1024)

    yield Ruled("chunks of 1024", {"causal": True, "chunk": 1024}, T * 512, chunk, in_chunk)
    slopes = 2.0 ** (-8 * torch.arange(1.0, H + 1, device="cuda") / H)

    def alibi(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s - slopes[h] * (q - k)

    def bias(dtype: torch.dtype) -> Tensor:
        distances = (rows - rows[:, None]).float()
        added = slopes.view(1, H, 1, 1) * distances
        return added.masked_fill(causal, float("-inf")).to(dtype)

    yield Ruled(
        "ALiBi",
        {"causal": True, "alibi_slopes": slopes},
        half,
        causal,
        is_before,
        alibi,
        bias,
    )
    sinks = torch.randn(H, device="cuda")
    yield Ruled(
        "sinks", {"causal": True, "sinks": sinks}, half, causal, is_before, sinks=sinks
    )

    def capped(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return 20 * torch.tanh(s / 20)

    yield Ruled(
        "softcap", {"causal": True, "softcap": 20.0}, half, causal, is_before, capped
    )


def ruled_cases() -> Iterator[Case]:
    B, H, T, D = 2, 16, 4096, 128
    for dtype in (torch.bfloat16, torch.float32):
        for ruled in rules(H, T):
            x = [draw(B, H, T, D, dtype=dtype) for _ in range(3)]
            ways: dict[str, Attend] = {}
            if ruled.sinks is not None or "softcap" in ruled.rule:
                ways["operators"] = eager(ruled)
            elif ruled.bias:
                ways["sdpa, mask"] = sdpa(attn_mask=ruled.bias(dtype))
            else:
                ways["sdpa, mask"] = sdpa(attn_mask=~ruled.hides)
            if ruled.sinks is None and dtype == torch.bfloat16:
                mask = create_block_mask(ruled.mask_mod, None, None, T, T, device="cuda")
                compiled = torch.compile(flex_attention)
                ways["flex_attention"] = functools.partial(
                    compiled, score_mod=ruled.score_mod, block_mask=mask
                )
            for backward in (False, True):
                yield Case(
                    f"{ruled.name}, B{B} H{H} T{T} D{D}"
                    + (", forward and backward" if backward else ""),
                    call(ours(**ruled.rule), *x, backward=backward),
                    {n: call(run, *x, backward=backward) for n, run in ways.items()},
                    dtype,
                    flops_of(x[0], ruled.pairs, backward=backward),
                )


def packed() -> Iterator[Case]:
    H, D = 16, 128
    lengths = [128 + 3968 * i // 15 for i in range(16)]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    N, longest = int(ends[-1]), max(lengths)
    dtype = torch.bfloat16
    x = [draw(1, H, N, D, dtype=dtype) for _ in range(3)]
    lengths_there = torch.tensor(lengths, device="cuda")
    starts = ends.to("cuda", torch.int32)
    used = torch.arange(longest, device="cuda") < lengths_there[:, None]

    def padded(*tensors: Tensor) -> Tensor:
        rows = []
        for each in tensors:
            wide = each.new_zeros(len(lengths), longest, H, D)
            wide[used] = each[0].transpose(0, 1)
            rows.append(wide.transpose(1, 2))
        out = F.scaled_dot_product_attention(*rows, is_causal=True)
        return out.transpose(1, 2)[used].transpose(0, 1)[None]

    def varlen(*tensors: Tensor) -> Tensor:
        rows = [each[0].transpose(0, 1) for each in tensors]
        out = torch.ops.aten._flash_attention_forward(
            *rows, starts, starts, longest, longest, 0.0, True, False
        )[0]
        return out.transpose(0, 1)[None]

    pairs = sum(n * n / 2 for n in lengths)
    for backward in (False, True):
        ways: dict[str, Attend] = {"sdpa, padded": padded}
        if not backward:
            ways["flash of packed rows"] = varlen
        yield Case(
            f"16 texts of 128 to 4096, packed, causal, H{H} D{D}"
            + (", forward and backward" if backward else ""),
            call(ours(causal=True, cu_seqlens=ends), *x, backward=backward),
            {n: call(run, *x, backward=backward) for n, run in ways.items()},
            dtype,
            flops_of(x[0], pairs, backward=backward),
        )


def without_cudnn(run: Run) -> Run:
    def result() -> Any:
        torch._C._set_sdp_use_cudnn(False)
        try:
            return run()
        finally:
            torch._C._set_sdp_use_cudnn(True)

    return result


class Step:
    """A new token after a cache (B, 8, capacity, 128) of `used` rows, for 32 heads."""

    def __init__(self, B: int, used: int, capacity: int, dtype: torch.dtype) -> None:
        H, G, D = 32, 8, 128
        self.used = self.first = used
        self.capacity = capacity
        self.groups = H // G
        self.query = draw(B, H, 1, D, dtype=dtype)
        self.key, self.value = (draw(B, G, 1, D, dtype=dtype) for _ in range(2))
        self.caches = [draw(B, G, capacity, D, dtype=dtype) for _ in range(2)]
        self.lengths = torch.full((B,), used)
        self.bytes = 2.0 * B * G * (used + 1) * D * self.query.element_size()

    def ours(self, lengths: Tensor | None = None) -> Tensor:
        new = (self.query, self.key, self.value)
        lengths = self.lengths if lengths is None else lengths
        return torch.ops.torch_attention.decode(*new, *self.caches, lengths)

    def rows(self) -> list[Tensor]:
        """Appends the new rows. Returns those that are used."""
        S = self.used
        for cache, new in zip(self.caches, (self.key, self.value), strict=True):
            cache[:, :, S : S + 1] = new
        return [c[:, :, : S + 1] for c in self.caches]

    def theirs(self) -> Tensor:
        return sdpa(enable_gqa=True)(self.query, *self.rows())

    def repeated(self) -> Tensor:
        return sdpa()(
            self.query, *(x.repeat_interleave(self.groups, 1) for x in self.rows())
        )

    def growing(self, run: Run) -> Run:
        """Returns `run` with one more row in each call, as texts grow."""
        used = self.first

        def result() -> Any:
            nonlocal used
            self.used = used
            self.lengths.fill_(used)
            used = used + 1 if used + 2 < self.capacity else self.first
            return run()

        return result


def decoding() -> Iterator[Case]:
    for dtype in (torch.bfloat16, torch.float32):
        for B, S in ((1, 8000), (8, 2000), (64, 2000)):
            name = f"token after {S}, 32 heads on 8, B{B} D128"
            step = Step(B, S, 8192, dtype)
            ways = {"sdpa, its choice": step.theirs, "sdpa, keys repeated": step.repeated}
            if dtype != torch.float32:
                ways["sdpa, flash"] = without_cudnn(step.theirs)
            yield Case(name, step.ours, ways, dtype, bytes_read=step.bytes)
            if B == 8:
                step = Step(B, S, 8192, dtype)
                yield Case(
                    f"{name}, one more in each call",
                    step.growing(step.ours),
                    {
                        "sdpa, its choice": step.growing(step.theirs),
                        "sdpa, without cuDNN": step.growing(without_cudnn(step.theirs)),
                    },
                    dtype,
                    bytes_read=step.bytes,
                )
            # All rows of this cache are used: in a graph shapes do not change.
            step = Step(B, S, S + 1, dtype)
            yield Case(
                f"{name}, in a graph",
                captured(functools.partial(step.ours, step.lengths.cuda())),
                {
                    "sdpa, its choice": captured(step.theirs),
                    "sdpa, without cuDNN": captured(without_cudnn(step.theirs)),
                },
                dtype,
                bytes_read=step.bytes,
            )


GROUPS = {
    "plain": plain,
    "small": small,
    "grouped": grouped,
    "decoding": decoding,
    "packed": packed,
    "rules": ruled_cases,
}


def measure_roof() -> dict[str, float]:
    """Returns operations per second of products by dtype, and bytes of a copy."""
    roof = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x, y = (draw(8192, 8192, dtype=dtype) for _ in range(2))
        taken = spread(interleave([event_timer(functools.partial(torch.mm, x, y))], EFFORT)[0])
        roof[str(dtype)[6:]] = 2 * 8192**3 / taken["median"]
    x, y = (torch.empty(2**30, dtype=torch.uint8, device="cuda") for _ in range(2))
    taken = spread(interleave([event_timer(lambda: y.copy_(x))], EFFORT)[0])
    roof["bytes"] = 2 * 2.0**30 / taken["median"]
    return roof


def measure(case: Case, roof: dict[str, float]) -> dict[str, Any]:
    """Prints the row of a case, and returns it."""
    expected = results_of(case.ours)
    ways: dict[str, Run] = {}
    notes = {}
    for name, run in case.theirs.items():
        try:
            found = results_of(run)
        except RuntimeError as error:
            notes[name] = "refused: " + str(error).splitlines()[0][:60]
            continue
        distance = difference(found, expected) if case.same else 0.0
        if distance <= ALLOWED[case.dtype]:
            ways[name] = run
        else:
            notes[name] = f"differs by {distance:.1e}"
    timers = [event_timer(case.ours)] + [event_timer(run) for run in ways.values()]
    seconds = interleave(timers, EFFORT)
    mine = spread(seconds[0])["median"]
    dtype = str(case.dtype)[6:]
    if case.flops:
        share = case.flops / mine / roof[dtype]
    else:
        share = case.bytes_read / mine / roof["bytes"]
    row: dict[str, Any] = {
        "name": case.name,
        "dtype": dtype,
        "seconds": mine,
        "share_of_roof": share,
        "ratios": {
            name: ratio(taken, seconds[0])
            for name, taken in zip(ways, seconds[1:], strict=True)
        },
        "notes": notes,
    }
    print(f"{case.name}, {dtype}: {time_text(mine)}, {share:.2f} of the roof")
    for name, figures in row["ratios"].items():
        print(f"    {name:28}{ratio_text(figures)}")
    for name, note in notes.items():
        print(f"    {name:28}{note}")
    sys.stdout.flush()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path, help="folder of the library")
    parser.add_argument("--only", choices=GROUPS, help="one of the groups")
    parser.add_argument("--json", type=pathlib.Path, help="writes the figures here")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 77
    warnings.filterwarnings("ignore")
    torch.ops.load_library(options.library / "libtorch_attention.so")
    torch.manual_seed(0)
    roof = measure_roof()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    for name, value in roof.items():
        print(f"  {name}: {value / 1e12:.1f} T/s")
    rows = []
    for name, group in GROUPS.items():
        if options.only in (None, name):
            for case in group():
                rows.append(measure(case, roof))
                if options.json:
                    options.json.write_text(json.dumps({"roof": roof, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
