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
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.agreement import difference
from harness.machine import describe_machine
from harness.measure import Effort, interleave, ratio, spread, timer
from harness.memory import peak_resident
from harness.report import print_case, print_head
from harness.roof import Roof
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
# torch_attention_bench.
ALLOWED_DIFFERENCE = 1e-4


# --- Measuring -------------------------------------------------------------

FULL = Effort(8, 7, 31)
QUICK = Effort(2, 3, 15)


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
    seconds = interleave([*timers, timer(roof.multiply)], effort)
    roof_rate = roof.flops / spread(seconds[-1])["median"]
    case["roof_per_second"] = roof_rate
    case["rounds"] = len(seconds[0])
    for i, candidate in enumerate(candidates):
        rate = work.flops / spread(seconds[i])["median"]
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


# --- Command line ----------------------------------------------------------


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
    except (PeersError, OSError, ValueError) as error:
        print(f"peers.py: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
