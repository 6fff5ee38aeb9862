#!/usr/bin/env python3
"""Measures our modules against Python's, interleaved in one process.

The candidates have the same weights and inputs, and their outputs and
gradients are compared first. Ours runs in this process on LibTorch's own
threads, by the library libtorch_attention_bench_peers (cmake
-DTORCH_ATTENTION_BENCHMARKS=ON). Candidates that cannot run here (torch.compile
without a compiler, ONNX Runtime that is not installed) are left out with a line
that says why.

    python benchmarks/peers.py build/release/lib --json peers.json

Sizes: B batch, T tokens, C channels, H heads, D head dimension.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peers_candidates import (
    WORKS,
    Data,
    LeftOut,
    PeersError,
    draw,
    load_library,
    make_candidates,
)

# The part of the largest element by which results may differ, as in
# torch-attention bench.
ALLOWED_DIFFERENCE = 1e-4


# --- Measuring -------------------------------------------------------------


@dataclass(frozen=True)
class Effort:
    seconds: float
    least_rounds: int
    most_rounds: int
    sample_seconds: float = 5e-3


FULL = Effort(8, 7, 31)
QUICK = Effort(2, 3, 15)


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[round(q * (len(values) - 1))]


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": quantile(values, 0.5),
        "p10": quantile(values, 0.1),
        "p90": quantile(values, 0.9),
    }


def ratio(theirs: list[float], ours: list[float]) -> dict[str, float]:
    """Returns the medians' ratio, with p10 and p90 of the rounds' ratios."""
    result = spread([t / o for t, o in zip(theirs, ours, strict=True)])
    result["median"] = quantile(theirs, 0.5) / quantile(ours, 0.5)
    return result


def timer(run: Callable[[], Any]) -> Callable[[int], float]:
    """Returns what takes the time of a number of calls."""

    def take(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return time.perf_counter() - start

    return take


def sample(timer: Callable[[int], float], seconds: float) -> tuple[int, float]:
    """Returns a number of calls that take about `seconds`, and their time."""
    calls = 1
    elapsed = timer(calls)
    while elapsed < seconds / 2 and calls < 2**20:
        growth = seconds / max(elapsed, 1e-9)
        calls = int(calls * min(max(growth, 2), 32))
        elapsed = timer(calls)
    return calls, elapsed


def interleave(
    timers: list[Callable[[int], float]], effort: Effort
) -> list[list[float]]:
    """Returns the seconds of one call, by timer and round.

    Each round begins with another timer.
    """
    start = time.perf_counter()
    samples = [sample(timer, effort.sample_seconds) for timer in timers]
    seconds = [[elapsed / calls] for calls, elapsed in samples]
    for turn in range(1, effort.most_rounds):
        is_late = time.perf_counter() - start > effort.seconds
        if turn >= effort.least_rounds and is_late:
            break
        for j in range(len(timers)):
            i = (j + turn) % len(timers)
            calls = samples[i][0]
            seconds[i].append(timers[i](calls) / calls)
    return seconds


def status_bytes(name: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    return -1


def peak_resident(run: Callable[[], Any]) -> int:
    """Returns the bytes of the run's peak of memory beyond that before it."""
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return -1
    before = status_bytes("VmRSS")
    run()
    return max(status_bytes("VmHWM") - before, 0)


def difference(theirs: list[Tensor], ours: list[Tensor]) -> float:
    """Returns the largest difference, relative to the tensor's largest element."""
    if len(theirs) != len(ours):
        raise PeersError("candidates give different numbers of gradients")
    largest = 0.0
    for a, b in zip(theirs, ours, strict=True):
        distance = (a.double() - b.double()).abs().max().item()
        relative = distance / b.abs().max().item()
        is_nan = relative != relative
        largest = max(largest, float("inf") if is_nan else relative)
    return largest


class Roof:
    """LibTorch's sgemm and reading of memory, on this number of threads."""

    def __init__(self) -> None:
        self.size = 2048
        self.a = torch.rand(self.size, self.size)
        self.b = torch.rand(self.size, self.size)
        self.c = torch.empty(self.size, self.size)

    @property
    def flops(self) -> float:
        return 2.0 * self.size**3

    def time(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            torch.mm(self.a, self.b, out=self.c)
        return time.perf_counter() - start

    def describe(self) -> dict[str, Any]:
        effort = Effort(1, 5, 9)
        x = torch.ones(1 << 26)
        y = torch.ones(1 << 26)
        z = torch.ones(1 << 26)

        def read(calls: int) -> float:
            start = time.perf_counter()
            for _ in range(calls):
                x.sum()
            return time.perf_counter() - start

        def triad(calls: int) -> float:
            start = time.perf_counter()
            for _ in range(calls):
                torch.add(x, y, alpha=2, out=z)
            return time.perf_counter() - start

        def rates(timer: Callable[[int], float], amount: float) -> Any:
            seconds = interleave([timer], effort)[0]
            return spread([amount / s for s in seconds])

        return {
            "product": f"torch.mm, {self.size} rows",
            "sgemm_flops_per_second": rates(self.time, self.flops),
            "read_bytes_per_second": rates(read, x.nbytes),
            "triad_bytes_per_second": rates(triad, 3 * x.nbytes),
        }


def measure(
    data: Data, candidates: list[Any], roof: Roof, effort: Effort
) -> dict[str, Any]:
    work = data.work
    case: dict[str, Any] = {
        "name": work.name,
        **{name: getattr(work, name) for name in "BTCHD"},
        "dropout": work.dropout,
        "window": None,
        "backward": work.backward,
        "recording": work.recording,
        "unit": "FLOP",
        "amount": work.flops,
        "problem": None,
        "candidates": [],
    }
    differences = []
    ours: list[Tensor] = []
    for candidate in candidates:
        candidate.train(False)
        results = candidate.results()
        ours = ours or results
        differences.append(difference(results, ours))
        candidate.train(work.dropout > 0)
    for candidate, distance in zip(candidates, differences, strict=True):
        if not distance <= ALLOWED_DIFFERENCE:
            case["problem"] = (
                f"{candidate.name} differs from ours by {distance:.1e} of the "
                "largest element"
            )
            return case
    del ours, results

    def once(candidate: Any) -> Callable[[], Any]:
        return lambda: candidate.time(1)

    peaks = [peak_resident(once(candidate)) for candidate in candidates]
    timers = [candidate.time for candidate in candidates]
    seconds = interleave([*timers, roof.time], effort)
    roof_rate = roof.flops / quantile(seconds[-1], 0.5)
    case["roof_per_second"] = roof_rate
    case["rounds"] = len(seconds[0])
    for i, candidate in enumerate(candidates):
        rate = work.flops / quantile(seconds[i], 0.5)
        case["candidates"].append(
            {
                "name": candidate.name,
                "seconds": spread(seconds[i]),
                "ratio": ratio(seconds[i], seconds[0]) if i else None,
                "per_second": rate,
                "share_of_roof": rate / roof_rate,
                "peak_resident_bytes": peaks[i],
                "difference": differences[i],
            }
        )
    return case


# --- Output ----------------------------------------------------------------


def cpu_info(name: str) -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def describe_machine() -> dict[str, Any]:
    flags = set(cpu_info("flags").split())
    names = "avx2 fma avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16"
    return {
        "cpu": cpu_info("model name"),
        "instruction_sets": [n for n in names.split() if n in flags],
        "libtorch_instruction_set": torch.backends.cpu.get_cpu_capability(),
        "libtorch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def time_text(seconds: float) -> str:
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds:.2f} s"


def print_head(report: dict[str, Any]) -> None:
    machine, roof = report["machine"], report["roof"]
    sets = " ".join(machine["instruction_sets"])
    print(f"{machine['cpu']}, {machine['cores']} cores: {sets}")
    print(f"PyTorch {machine['libtorch']}, Python {machine['python']}", end="")
    print(f", {machine['threads']} threads, float32")
    sgemm = roof["sgemm_flops_per_second"]["median"] / 1e9
    read = roof["read_bytes_per_second"]["median"] / 1e9
    triad = roof["triad_bytes_per_second"]["median"] / 1e9
    print(f"roof: sgemm {sgemm:.1f} GFLOP/s, ", end="")
    print(f"reading {read:.1f} GB/s, triad {triad:.1f} GB/s\n")
    print(f"{'':26}{'time':>12}  {'its time / ours':24}", end="")
    print(f"{'GFLOP/s':>9}{'of roof':>9}{'peak memory':>13}", flush=True)


def print_case(case: dict[str, Any]) -> None:
    print(case["name"])
    if case["problem"]:
        print(f"  no figures: {case['problem']}", flush=True)
        return
    for row in case["candidates"]:
        text = ""
        if row["ratio"]:
            r = row["ratio"]
            text = f"{r['median']:6.2f}  ({r['p10']:.2f} - {r['p90']:.2f})"
        print(f"  {row['name']:24}", end="")
        print(f"{time_text(row['seconds']['median']):>12}  {text:24}", end="")
        print(f"{row['per_second'] / 1e9:9.4g}", end="")
        print(f"{row['share_of_roof']:9.3f}", end="")
        print(f"{row['peak_resident_bytes'] / 1e6:10.1f} MB", flush=True)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", help="folder with the built libraries")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--series", action="store_true", help="also by T, for plots"
    )
    parser.add_argument(
        "--only", default="", help="only cases with this text in their name"
    )
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--threads", type=int, help="default: PyTorch's number")
    parser.add_argument("--json", help="write the results to this file")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    works = [
        work
        for work in WORKS
        if options.only in work.name and (options.series or not work.series)
    ]
    if not works:
        raise PeersError(f'no case has "{options.only}" in its name')
    if options.list:
        print("\n".join(work.name for work in works))
        return 0
    if options.threads:
        torch.set_num_threads(options.threads)
    library = load_library(options.libraries)
    roof = Roof()
    left_out = LeftOut()
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "roof": roof.describe(),
        "quick": options.quick,
        "left_out": left_out.reasons,
        "cases": [],
    }
    print_head(report)
    effort = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        for work in works:
            data = draw(work)
            candidates = make_candidates(
                data, library, pathlib.Path(folder), left_out
            )
            report["cases"].append(measure(data, candidates, roof, effort))
            print_case(report["cases"][-1])
            del data, candidates
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=2))
    return 1 if any(case["problem"] for case in report["cases"]) else 0


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        return run(options)
    except (PeersError, OSError) as error:
        print(f"peers.py: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
