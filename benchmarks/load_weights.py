#!/usr/bin/env python3
"""Times loading a GPT-2-sized file: ours against Python's, in one process.

Both load the same file from the page cache into a model that exists, interleaved,
with the same number of threads. Needs the library libtorch_attention_bench_load
(cmake -DTORCH_ATTENTION_BENCHMARKS=ON) and, for the safetensors rows, the
package safetensors.

    python benchmarks/load_weights.py build/release/lib
"""

import argparse
import ctypes
import json
import os
import pathlib
import sys
import tempfile

import torch
from torch import nn

from harness.measure import Effort, interleave, ratio, spread, timer

LAYERS = 12
C = 768


def gpt2_shapes():
    """Returns keys and shapes of GPT-2 (124M parameters, 0.5 GB in float32)."""
    shapes = {"wte.weight": (50257, C), "wpe.weight": (1024, C)}
    for i in range(LAYERS):
        block = f"h.{i}."
        for name in ("ln_1", "ln_2"):
            shapes[block + name + ".weight"] = (C,)
            shapes[block + name + ".bias"] = (C,)
        for name in ("W_query", "W_key", "W_value", "out_proj"):
            shapes[block + f"attn.{name}.weight"] = (C, C)
            shapes[block + f"attn.{name}.bias"] = (C,)
        shapes[block + "mlp.c_fc.weight"] = (4 * C, C)
        shapes[block + "mlp.c_fc.bias"] = (4 * C,)
        shapes[block + "mlp.c_proj.weight"] = (C, 4 * C)
        shapes[block + "mlp.c_proj.bias"] = (C,)
    return shapes


class Tree(nn.Module):
    """A tree of modules with the parameters that are added to it."""

    def add(self, key, tensor):
        name, _, rest = key.partition(".")
        if not rest:
            self.register_parameter(name, nn.Parameter(tensor, False))
            return
        if name not in self._modules:
            self.add_module(name, Tree())
        self._modules[name].add(rest, tensor)


def make_tree(shapes):
    tree = Tree()
    for key, shape in shapes.items():
        tree.add(key, torch.zeros(shape))
    return tree


class Ours:
    """The C++ loader in this process."""

    def __init__(self, folder, shapes):
        path = next(pathlib.Path(folder).glob("libtorch_attention_bench_load*"))
        self.library = ctypes.CDLL(str(path))
        self.library.load_model.restype = ctypes.c_double
        self.library.sum_model.restype = ctypes.c_double
        self.peak_bytes = 0
        self.describe(shapes)

    def describe(self, shapes):
        lines = [" ".join([k, *map(str, s)]) for k, s in shapes.items()]
        self.library.make_model("\n".join(lines).encode())

    def load(self, path, prefix=""):
        peak = ctypes.c_int64()
        seconds = self.library.load_model(
            str(path).encode(), prefix.encode(), ctypes.byref(peak)
        )
        if seconds < 0:
            sys.exit("our loader failed")
        self.peak_bytes = peak.value
        return seconds

    def sum(self):
        return self.library.sum_model()


def one_call(rounds):
    """Returns the effort of so many rounds of one call."""
    return Effort(0, rounds, rounds, 0)


def compare(name, read, path, ours, model, runs):
    """Returns the ratio of Python's time to ours; the runs take turns."""

    def load_by_python():
        model.load_state_dict(read(path))

    for _ in range(2):  # the page cache, and lazy imports
        load_by_python()
        ours.load(path)
    expected = sum(p.sum(dtype=torch.float64).item() for p in model.parameters())
    if ours.sum() != expected:
        sys.exit(f"{name}: other values: {ours.sum()} and {expected}")
    peaks = []

    def time_ours(_calls):
        seconds = ours.load(path)
        peaks.append(ours.peak_bytes)
        return seconds

    theirs_s, ours_s = interleave(
        [timer(load_by_python), time_ours], one_call(runs)
    )
    median = spread(ours_s)["median"]
    r = ratio(theirs_s, ours_s)
    return {
        "case": name,
        "python_ms": 1e3 * spread(theirs_s)["median"],
        "ours_ms": 1e3 * median,
        "ratio": r["median"],
        "p10": r["p10"],
        "p90": r["p90"],
        "peak_mb": max(peaks) / 2**20,
        "gb_per_s": os.path.getsize(path) / 1e9 / median,
    }


def one_layer(path, ours, shapes):
    """Returns time and memory of one layer's attention, by its prefix."""
    prefix = "h.3.attn."
    ours.describe(
        {k[len(prefix):]: s for k, s in shapes.items() if k.startswith(prefix)}
    )
    seconds = [ours.load(path, prefix[:-1]) for _ in range(10)]
    return {
        "case": f"one layer of {path.name}",
        "ours_ms": 1e3 * spread(seconds)["median"],
        "peak_mb": ours.peak_bytes / 2**20,
    }


def copy_bandwidth():
    """Returns GB/s of copying 0.5 GB in memory: the roof of any load."""
    a = torch.rand(125_000_000)
    b = torch.empty_like(a)
    seconds = interleave([timer(lambda: b.copy_(a))], one_call(7))[0]
    return a.nbytes / 1e9 / spread(seconds)["median"]


def torch_load(path):
    return torch.load(path, weights_only=True)


def torch_load_mmap(path):
    return torch.load(path, weights_only=True, mmap=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", help="folder with the built libraries")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", help="write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    shapes = gpt2_shapes()
    torch.manual_seed(123)
    state = {key: torch.randn(shape) for key, shape in shapes.items()}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        torch.save(state, folder / "model.pt")
        rows = [
            ("torch.save, torch.load", torch_load, folder / "model.pt"),
            ("torch.save, mmap=True", torch_load_mmap, folder / "model.pt"),
        ]
        try:
            from safetensors.torch import load_file, save_file

            save_file(state, folder / "model.safetensors")
            rows.insert(
                0, ("safetensors", load_file, folder / "model.safetensors")
            )
        except ImportError:
            print("safetensors is not installed: its row is left out")
        largest = max(t.nbytes for t in state.values()) / 2**20
        del state
        model = make_tree(shapes)
        ours = Ours(arguments.libraries, shapes)
        for name, read, path in rows:
            results.append(
                compare(name, read, path, ours, model, arguments.runs)
            )
        for path in sorted({path for _, _, path in rows}):
            results.append(one_layer(path, ours, shapes))
    roof = copy_bandwidth()

    print(f"{arguments.threads} threads, copy {roof:.1f} GB/s, ", end="")
    print(f"largest tensor {largest:.0f} MB, median of {arguments.runs} runs")
    print(f"{'case':32} {'Python':>9} {'ours':>9} {'ratio':>6}", end="")
    print(f" {'p10':>5} {'p90':>5} {'peak':>8}")
    for row in results:
        print(f"{row['case']:32} ", end="")
        if "ratio" in row:
            print(f"{row['python_ms']:6.0f} ms {row['ours_ms']:6.0f} ms", end="")
            print(f" {row['ratio']:6.2f} {row['p10']:5.2f}", end="")
            print(f" {row['p90']:5.2f}", end="")
        else:
            print(f"{'':9} {row['ours_ms']:6.1f} ms {'':18}", end="")
        print(f" {row['peak_mb']:5.0f} MB")
    if arguments.json:
        report = {"threads": arguments.threads, "copy_gb_per_s": roof}
        report["rows"] = results
        pathlib.Path(arguments.json).write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
