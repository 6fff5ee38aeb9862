"""How figures are printed."""

from __future__ import annotations

from typing import Any


def time_text(seconds: float) -> str:
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds:.2f} s"


def ratio_text(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['p10']:.2f} to {ratio['p90']:.2f})"


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
