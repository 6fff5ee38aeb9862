#!/usr/bin/env python3
"""Plots the results of `torch_attention_bench --series --json` or peers.py.

Three plots by the number of tokens: time, share of the roof, peak memory.
Needs matplotlib.

    torch_attention_bench --series --only series --json bench.json
    python benchmarks/plot.py bench.json bench.png
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

Case = dict[str, Any]
Row = dict[str, Any]


def memory_mb(row: Row) -> float:
    """Returns the bytes of the allocator, or in peers.py of the process."""
    key = "peak_allocated_bytes"
    return row.get(key, row["peak_resident_bytes"]) / 1e6


# Title of the axis -> its value in a row.
PLOTS: dict[str, Callable[[Row], float]] = {
    "time (ms)": lambda row: 1e3 * row["seconds"]["median"],
    "share of the sgemm roof": lambda row: row["share_of_roof"],
    "peak memory (MB)": memory_mb,
}


def curves(
    cases: list[Case], value: Callable[[Row], float]
) -> dict[str, list[tuple[int, float]]]:
    """Returns the points (T, value) of each candidate, by T."""
    result: dict[str, list[tuple[int, float]]] = {}
    for case in sorted(cases, key=lambda case: case["T"]):
        for row in case["candidates"]:
            result.setdefault(row["name"], []).append((case["T"], value(row)))
    return result


def title(report: dict[str, Any], cases: list[Case]) -> str:
    machine = report["machine"]
    case = cases[0]
    work = f"B {case['B']}, C {case['C']}, H {case['H']}, float32, forward"
    return (
        f"{work}: {machine['cpu']}, {machine['threads']} threads, "
        f"LibTorch {machine['libtorch']} "
        f"({machine['libtorch_instruction_set']})"
    )


def plot(report: dict[str, Any], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    cases = [
        case
        for case in report["cases"]
        if case["name"].startswith("series") and case["candidates"]
    ]
    if not cases:
        sys.exit("plot.py: error: no series in the file; use --series")
    tokens = sorted({case["T"] for case in cases})
    figure, axes = pyplot.subplots(1, len(PLOTS), figsize=(15, 4.6))
    for axis, (label, value) in zip(axes, PLOTS.items(), strict=True):
        for name, points in curves(cases, value).items():
            is_ours = name.startswith("ours")
            axis.plot(
                *zip(*points, strict=True),
                marker="o",
                markersize=4,
                label=name,
                linewidth=2.4 if is_ours else 1.3,
                zorder=3 if is_ours else 2,
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks(tokens)
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.tick_params(axis="x", rotation=45)
        axis.set_xlabel("tokens T")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        if "roof" in label:
            axis.set_ylim(0, 1)
        else:
            axis.set_yscale("log")
    axes[0].legend()
    figure.suptitle(title(report, cases), fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=pathlib.Path, help="measured results")
    parser.add_argument("png", type=pathlib.Path, help="file to write")
    options = parser.parse_args()
    plot(json.loads(options.json.read_text()), options.png)


if __name__ == "__main__":
    main()
