#!/usr/bin/env python3
"""Looks for sizes that take longer than their neighbours, and plots them.

    torch_attention_bench_sweep > sweep.csv
    python benchmarks/sweep.py sweep.csv sweep.png

Time is compared with a + flops / F + bytes / M, where a is the least time of a
call, and F and M are the most FLOP/s and bytes/s of all sizes: a slowness of 2 is
twice that. The slowness of neighbours, of which the number of queries or of heads
in a group differs by a step, should differ by less than 1.5. (That of more keys may
differ by more, where they leave a cache.) Prints the ten largest steps; fails if one
is larger than --most. The picture needs matplotlib.
"""

from __future__ import annotations

import argparse
import csv
import pathlib
import sys

Size = tuple[int, int, int]  # T, S, group
NAMES = ("T", "S", "group")


def read(path: pathlib.Path) -> tuple[str, dict[Size, dict[str, float]]]:
    """Returns the dtype, and the seconds, FLOPs and bytes of each size."""
    sizes = {}
    dtype = ""
    with path.open() as file:
        for row in csv.DictReader(file):
            dtype = row["dtype"]
            size = tuple(int(row[name]) for name in NAMES)
            numbers = ("seconds", "flops", "bytes")
            sizes[size] = {name: float(row[name]) for name in numbers}
    if not sizes:
        sys.exit(f"sweep.py: error: no sizes in {path}")
    return dtype, sizes


def slowness(sizes: dict[Size, dict[str, float]]) -> dict[Size, float]:
    """Returns the time of each size by that of the machine's best rates."""
    least = min(x["seconds"] for x in sizes.values())
    most_flops = max(x["flops"] / x["seconds"] for x in sizes.values())
    most_bytes = max(x["bytes"] / x["seconds"] for x in sizes.values())
    return {
        size: x["seconds"]
        / (least + x["flops"] / most_flops + x["bytes"] / most_bytes)
        for size, x in sizes.items()
    }


def steps(slow: dict[Size, float]) -> list[tuple[float, Size, Size]]:
    """Returns how much the slowness of neighbours differs, most first."""
    found = []
    for axis in (NAMES.index("T"), NAMES.index("group")):
        values = sorted({size[axis] for size in slow})
        after = dict(zip(values, values[1:]))
        for size in slow:
            if size[axis] not in after:
                continue
            other = list(size)
            other[axis] = after[size[axis]]
            other = tuple(other)
            if other in slow:
                ratio = slow[other] / slow[size]
                found.append((max(ratio, 1 / ratio), size, other))
    return sorted(found, reverse=True)


def text(size: Size) -> str:
    return " ".join(f"{name} {n}" for name, n in zip(NAMES, size))


def plot(dtype: str, slow: dict[Size, float], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_axis = [sorted({size[axis] for size in slow}) for axis in range(3)]
    tokens, keys, groups = by_axis
    figure, axes = pyplot.subplots(
        2, 3, figsize=(15, 6.4), layout="constrained"
    )
    image = None
    for axis, S in zip(axes.flat, keys):
        grid = [
            [slow.get((T, S, group), float("nan")) for T in tokens]
            for group in groups
        ]
        image = axis.imshow(
            grid, aspect="auto", vmin=1, vmax=4, cmap="viridis_r"
        )
        axis.set_title(f"{S} keys", fontsize=10)
        axis.set_xticks(range(len(tokens)), tokens, fontsize=7, rotation=90)
        axis.set_yticks(range(len(groups)), groups, fontsize=8)
        axis.set_xlabel("queries")
        axis.set_ylabel("heads of a group")
    figure.suptitle(
        f"Time of attention alone by the machine's best rates, {dtype}"
    )
    figure.colorbar(image, ax=axes, label="slowness (1 is best)", pad=0.01)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=pathlib.Path, help="measured times")
    parser.add_argument(
        "png", type=pathlib.Path, nargs="?", help="picture to write"
    )
    parser.add_argument(
        "--most", type=float, help="the largest step that is allowed"
    )
    options = parser.parse_args()
    dtype, sizes = read(options.csv)
    slow = slowness(sizes)
    found = steps(slow)
    for ratio, size, other in found[:10]:
        print(
            f"{ratio:.2f}: {text(size)} {1e6 * sizes[size]['seconds']:.1f} us,"
            f" {text(other)} {1e6 * sizes[other]['seconds']:.1f} us"
        )
    above = sum(ratio > 1.5 for ratio, _, _ in found)
    print(f"{above} of {len(found)} steps are larger than 1.5")
    if options.png:
        plot(dtype, slow, options.png)
    if options.most and found[0][0] > options.most:
        sys.exit(f"sweep.py: a step is larger than {options.most}")


if __name__ == "__main__":
    main()
