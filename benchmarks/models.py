#!/usr/bin/env python3
"""Measures whole decoders against Python's and other programs, interleaved.

The models have random weights: GPT-2 of 124M, and one of Llama's class with the
sizes of Qwen2.5-0.5B. Ours is the program of examples/gpt. What the candidates
say is compared first. Peers that are not there (CTranslate2, ONNX Runtime,
llama.cpp) are left out with a line that says why.

    python benchmarks/models.py build/release/bin/gpt \\
        --llama-cpp llama-batched-bench --json models.json

Sizes: B batch, T tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# Huge pages for all that use LibTorch, as our program asks for them.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import torch  # noqa: E402

from harness.machine import describe_machine  # noqa: E402
from harness.measure import Effort, interleave, timer  # noqa: E402
from harness.report import time_text  # noqa: E402
from harness.roof import Roof  # noqa: E402
from models_candidates import (  # noqa: E402
    CONFIGS,
    Compiled,
    CTranslate2,
    Eager,
    LlamaCpp,
    ModelsError,
    OnnxRuntime,
    Ours,
    PythonTraining,
    Rows,
    is_installed,
    load,
    make_folder,
    weights_read,
)

# By how much of the largest logit a candidate's token may be less likely, in
# float32 by transformers, than the likeliest.
ALLOWED_GAP = {"float32": 1e-3, "bfloat16": 0.1}
# By how much the losses of the first steps of training may differ.
ALLOWED_LOSS = {"float32": 1e-3, "bfloat16": 2e-2}


# --- Cases -----------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    model: str
    dtype: str
    B: int
    kind: str = "text"

    @property
    def name(self) -> str:
        return f"{self.model} {self.dtype} {self.kind} B{self.B}"


LEAST_ROUNDS = 3

DTYPES = ("float32", "bfloat16")
CASES = [
    *(Case(m, d, b) for d in DTYPES for m in CONFIGS for b in (1, 8)),
    *(Case("gpt2", d, 4, "training") for d in DTYPES),
]


@dataclass(frozen=True)
class Sizes:
    prompt: int
    new: int
    training: int


SIZES = Sizes(512, 128, 512)
TINY = Sizes(32, 8, 32)


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
    }


# --- Roof ------------------------------------------------------------------


class Rates:
    """LibTorch's reading of memory and sgemm, in each round."""

    def __init__(self, is_tiny: bool) -> None:
        self.roof = Roof(256, 1 << 20) if is_tiny else Roof(2048, 1 << 28)
        self.read: list[float] = []
        self.sgemm: list[float] = []

    def measure(self) -> None:
        timers = [timer(self.roof.read), timer(self.roof.multiply)]
        # One call in each of five rounds, after one that warms up.
        read, multiply = interleave(timers, Effort(0, 6, 6, 0))
        self.read.append(self.roof.x.nbytes / statistics.median(read[1:]))
        self.sgemm.append(self.roof.flops / statistics.median(multiply[1:]))

    def describe(self) -> dict[str, Any]:
        return {
            "read_bytes_per_second": spread(self.read),
            "sgemm_flops_per_second": spread(self.sgemm),
        }


# --- Comparing -------------------------------------------------------------


def token_gap(model: Any, prompts: Rows, tokens: Rows) -> float:
    """Returns the largest gap of a token's logit to the largest logit of its
    place, relative to that, in the first and the last text."""
    largest = 0.0
    for b in {0, len(prompts) - 1}:
        ids = torch.tensor([prompts[b] + tokens[b][:-1]])
        with torch.no_grad():
            count = len(tokens[b])
            logits = model(ids, logits_to_keep=count).logits[0].float()
        chosen = logits.gather(1, torch.tensor(tokens[b])[:, None])[:, 0]
        best = logits.max(-1).values
        largest = max(largest, ((best - chosen) / best.abs()).max().item())
    return largest


# --- Measuring -------------------------------------------------------------


class Bench:
    def __init__(self, options: argparse.Namespace, root: pathlib.Path) -> None:
        self.options = options
        self.root = root
        self.sizes = TINY if options.tiny else SIZES
        self.left_out: dict[str, str] = {}

    def text_candidates(self, case: Case, folder: pathlib.Path) -> list[Any]:
        threads = self.options.threads
        is_float = case.dtype == "float32"
        model = load(folder, case.dtype)
        candidates: list[Any] = [
            Ours(self.options.program, folder, case.dtype, threads),
            Eager(model),
            Compiled(model),
        ]
        for package, make in (
            ("ctranslate2", lambda: CTranslate2(folder, threads)),
            ("onnxruntime", lambda: OnnxRuntime(model, folder, threads)),
        ):
            if not is_installed(package):
                self.left_out[package] = "not installed"
            elif is_float:
                candidates.append(make())
            else:
                self.left_out[package + " in bfloat16"] = "not on the CPU"
        llama_cpp = self.options.llama_cpp
        if llama_cpp:
            candidates.append(
                LlamaCpp(llama_cpp, model, folder, case.dtype, threads)
            )
        else:
            self.left_out["llama.cpp"] = "no --llama-cpp"
        return candidates

    def training_candidates(self, case: Case, folder: pathlib.Path) -> list[Any]:
        return [
            Ours(self.options.program, folder, case.dtype, self.options.threads),
            *(
                PythonTraining(load(folder, "float32"), case.dtype, compiled)
                for compiled in (False, True)
            ),
        ]

    def rounds(self, count: int, run: Callable[[int], None]) -> int:
        """Runs all candidates interleaved; each round begins with another."""
        start = time.perf_counter()
        rounds = 0
        while rounds < self.options.rounds:
            is_late = time.perf_counter() - start > self.options.seconds
            if rounds >= LEAST_ROUNDS and is_late:
                break
            for j in range(count):
                # The threads of the one before go to sleep.
                time.sleep(0.3)
                run((j + rounds) % count)
            rounds += 1
        return rounds

    def measure_text(self, case: Case, rates: Rates) -> dict[str, Any]:
        folder = make_folder(case.model, self.options.tiny, self.root)
        config = load_empty_config(folder)
        torch.manual_seed(2)
        shape = (case.B, self.sizes.prompt)
        prompts = torch.randint(config.vocab_size, shape).tolist()
        texts: list[list[Any]] = []
        with closing(self.text_candidates(case, folder)) as candidates:
            for candidate in candidates:
                # Warms up; compiled programs compile for these shapes.
                candidate.generate(prompts, 2)
            for candidate in candidates:
                if isinstance(candidate, Compiled):
                    candidate.generate(prompts, self.sizes.new)
            texts = [[] for _ in candidates]

            def run(i: int) -> None:
                texts[i].append(candidates[i].generate(prompts, self.sizes.new))
                if i == 0:
                    rates.measure()

            rounds = self.rounds(len(candidates), run)
            names = [candidate.name for candidate in candidates]
        reference = load(folder, "float32")
        itemsize = 4 if case.dtype == "float32" else 2
        weights = weights_read(config) * itemsize
        reads = rates.read[-rounds:]
        result = describe(case, rounds)
        result["weights_bytes"] = weights
        result["read_bytes_per_second"] = spread(reads)
        for name, runs in zip(names, texts, strict=True):
            prompt = spread([run.prompt_seconds for run in runs])
            step = spread([run.step_seconds for run in runs])
            gap = None
            if runs[0].tokens is not None:
                gap = token_gap(reference, prompts, runs[0].tokens)
                if not gap <= ALLOWED_GAP[case.dtype]:
                    result["problem"] = f"{name}: a token is off by {gap:.1e}"
            result["candidates"].append(
                {
                    "name": name,
                    "prompt_seconds": prompt,
                    "step_seconds": step,
                    # Relative to the rate of the same round: that of shared
                    # machines changes.
                    "share_of_reading": spread(
                        [
                            weights / read / run.step_seconds
                            for read, run in zip(reads, runs, strict=True)
                        ]
                    ),
                    "gap": gap,
                }
            )
        return result

    def measure_training(self, case: Case, rates: Rates) -> dict[str, Any]:
        folder = make_folder(case.model, self.options.tiny, self.root)
        config = load_empty_config(folder)
        torch.manual_seed(3)
        shape = (case.B, self.sizes.training + 1)
        rows = torch.randint(config.vocab_size, shape).tolist()
        steps: list[list[tuple[float, float]]] = []
        with closing(self.training_candidates(case, folder)) as candidates:
            # The first step compiles and makes the optimizer's state.
            steps = [[candidate.train(rows)] for candidate in candidates]

            def run(i: int) -> None:
                steps[i].append(candidates[i].train(rows))
                if i == 0:
                    rates.measure()

            rounds = self.rounds(len(candidates), run)
            names = [candidate.name for candidate in candidates]
        result = describe(case, rounds)
        for name, taken in zip(names, steps, strict=True):
            losses = [loss for _, loss in taken]
            ours = [loss for _, loss in steps[0]]
            distance = max(abs(a - b) for a, b in zip(losses, ours, strict=True))
            if not distance <= ALLOWED_LOSS[case.dtype]:
                result["problem"] = f"{name}: a loss differs by {distance:.1e}"
            result["candidates"].append(
                {
                    "name": name,
                    "step_seconds": spread([s for s, _ in taken[1:]]),
                    "losses": losses,
                }
            )
        return result


@contextlib.contextmanager
def closing(candidates: list[Any]) -> Iterator[list[Any]]:
    try:
        yield candidates
    finally:
        for candidate in candidates:
            candidate.close()
        torch.compiler.reset()


def load_empty_config(folder: pathlib.Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder)


def describe(case: Case, rounds: int) -> dict[str, Any]:
    return {
        "name": case.name,
        "model": case.model,
        "dtype": case.dtype,
        "kind": case.kind,
        "B": case.B,
        "rounds": rounds,
        "problem": None,
        "candidates": [],
    }


# --- Output ----------------------------------------------------------------


def print_case(case: dict[str, Any]) -> None:
    print(f"{case['name']}, {case['rounds']} rounds", end="")
    if case["problem"]:
        print(f"\n  no figures: {case['problem']}", flush=True)
        return
    if case["kind"] == "text":
        read = {k: v / 1e9 for k, v in case["read_bytes_per_second"].items()}
        print(f"; weights {case['weights_bytes'] / 1e9:.2f} GB, reading", end="")
        print(f" at {read['median']:.1f} GB/s ({read['least']:.1f}", end="")
        print(f" to {read['most']:.1f})", end="")
    print()
    ours = case["candidates"][0]
    for row in case["candidates"]:
        print(f"  {row['name']:24}", end="")
        for key in ("prompt_seconds", "step_seconds"):
            if key in row:
                median = row[key]["median"]
                ratio = median / ours[key]["median"]
                least, most = (time_text(row[key][k]) for k in ("least", "most"))
                print(f"{time_text(median):>12}{ratio:6.2f}", end="")
                print(f"  ({least} to {most})", end="")
        if "share_of_reading" in row:
            print(f"{row['share_of_reading']['median']:7.2f} of reading", end="")
            gap = row["gap"]
            print("" if gap is None else f", gap {gap:.0e}", end="")
        print(flush=True)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the built program of examples/gpt")
    parser.add_argument("--llama-cpp", help="the program llama-batched-bench")
    parser.add_argument("--folder", help="keeps the models, to use them again")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds",
        type=float,
        default=120,
        help="of a case, after which only the first three rounds begin",
    )
    parser.add_argument("--tiny", action="store_true", help="tiny models")
    parser.add_argument(
        "--only", default="", help="only cases with this text in their name"
    )
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--json", help="write the results to this file")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    cases = [case for case in CASES if options.only in case.name]
    if not cases:
        raise ModelsError(f'no case has "{options.only}" in its name')
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    torch.set_num_threads(options.threads)
    rates = Rates(options.tiny)
    report: dict[str, Any] = {"machine": describe_machine(), "cases": []}
    with contextlib.ExitStack() as stack:
        folder = options.folder or stack.enter_context(
            tempfile.TemporaryDirectory()
        )
        bench = Bench(options, pathlib.Path(folder))
        for case in cases:
            measure = (
                bench.measure_text if case.kind == "text" else bench.measure_training
            )
            report["cases"].append(measure(case, rates))
            print_case(report["cases"][-1])
            report["roof"] = rates.describe()
            report["left_out"] = bench.left_out
            if options.json:
                text = json.dumps(report, indent=2)
                pathlib.Path(options.json).write_text(text)
    for name, reason in bench.left_out.items():
        print(f"left out: {name} ({reason})")
    read = report["roof"]["read_bytes_per_second"]["median"] / 1e9
    sgemm = report["roof"]["sgemm_flops_per_second"]["median"] / 1e9
    print(f"roof: reading {read:.1f} GB/s, sgemm {sgemm:.1f} GFLOP/s")
    return 1 if any(case["problem"] for case in report["cases"]) else 0


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        return run(options)
    except (ModelsError, OSError) as error:
        print(f"models.py: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
